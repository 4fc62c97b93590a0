# Alarms for what a query cannot solve by itself. It retries throttled and failed requests until its deadline
# (requestDeadlineS): a few of them only cost time, many of them for minutes mean that capacity is missing.
#
# DynamoDB counts throttles by table, and system errors by table and operation: the alarm adds these up. DynamoDB counts
# UserErrors only for the whole account and Region: an alarm on them would fire for other tables.
locals {
  throttles = var.alarms == null ? {} : {
    for pair in setproduct(keys(local.tables), ["read", "write"]) : "${pair[0]}/${pair[1]}" => {
      table     = pair[0]
      direction = pair[1]
    }
  }

  # The operations of the writer's policy. Readers use a subset.
  operations = {
    delta          = ["BatchGetItem", "BatchWriteItem", "Query"]
    snapshot_group = ["BatchGetItem", "BatchWriteItem", "DeleteItem", "GetItem", "PutItem", "Query", "UpdateItem"]
  }

  # Three minutes of the last five: one burst raises no alarm, and one minute without traffic ends none.
  alarm_period_s            = 60
  alarm_evaluation_periods  = 5
  alarm_datapoints_to_alarm = 3
}

resource "aws_cloudwatch_metric_alarm" "throttles" {
  for_each = local.throttles

  alarm_name          = "${aws_dynamodb_table.state[each.value.table].name}-${each.value.direction}-throttles"
  alarm_description   = "DynamoDB throttles ${each.value.direction}s of a state table: batches are slow, and fail if it goes on. Raise the table's capacity or limit, or use more shuffle partitions if one partition key is hot."
  namespace           = "AWS/DynamoDB"
  metric_name         = "${local.spelled[each.value.direction]}ThrottleEvents"
  dimensions          = { TableName = aws_dynamodb_table.state[each.value.table].name }
  statistic           = "Sum"
  period              = local.alarm_period_s
  evaluation_periods  = local.alarm_evaluation_periods
  datapoints_to_alarm = local.alarm_datapoints_to_alarm
  comparison_operator = "GreaterThanThreshold"
  threshold           = var.alarms.throttle_events_a_minute
  # DynamoDB sends no metric where there is nothing to count.
  treat_missing_data = "notBreaching"
  alarm_actions      = var.alarms.actions
  ok_actions         = var.alarms.actions
  tags               = var.tags
}

resource "aws_cloudwatch_metric_alarm" "system_errors" {
  for_each = var.alarms == null ? {} : local.operations

  alarm_name          = "${aws_dynamodb_table.state[each.key].name}-system-errors"
  alarm_description   = "DynamoDB answers requests to a state table with HTTP 500: batches are slow, and fail if it goes on. Look at the AWS Health Dashboard."
  evaluation_periods  = local.alarm_evaluation_periods
  datapoints_to_alarm = local.alarm_datapoints_to_alarm
  comparison_operator = "GreaterThanThreshold"
  threshold           = var.alarms.system_errors_a_minute
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarms.actions
  ok_actions          = var.alarms.actions
  tags                = var.tags

  metric_query {
    id          = "errors"
    expression  = "SUM(METRICS())"
    label       = "SystemErrors of all operations"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = each.value

    content {
      id = lower(metric_query.value)

      metric {
        namespace   = "AWS/DynamoDB"
        metric_name = "SystemErrors"
        dimensions = {
          TableName = aws_dynamodb_table.state[each.key].name
          Operation = metric_query.value
        }
        stat   = "Sum"
        period = local.alarm_period_s
      }
    }
  }
}
