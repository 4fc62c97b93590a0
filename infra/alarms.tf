# Alarms for what a query cannot solve by itself. It retries throttled and failed requests until its deadline
# (requestDeadlineS): a few of them only cost time, many of them for minutes mean that capacity is missing.
#
# DynamoDB counts throttles by table, and system errors by table and operation: the alarm adds these up. DynamoDB counts
# UserErrors only for the whole account and Region: an alarm on them would fire for other tables.
locals {
  # The operations of the writer's policy. Readers use a subset.
  operations = {
    delta          = ["BatchGetItem", "BatchWriteItem", "Query"]
    snapshot_group = ["BatchGetItem", "BatchWriteItem", "DeleteItem", "GetItem", "PutItem", "Query", "UpdateItem"]
  }

  alarms = var.alarms == null ? {} : merge(
    {
      for pair in setproduct(keys(local.tables), ["read", "write"]) : "${pair[0]}/${pair[1]}-throttles" => {
        table       = pair[0]
        name        = "${pair[1]}-throttles"
        description = "DynamoDB throttles ${pair[1]}s of a state table: batches are slow, and fail if it goes on. Raise the table's capacity or limit, or use more shuffle partitions if one partition key is hot."
        threshold   = var.alarms.throttle_events
        metric      = "${local.spelled[pair[1]]}ThrottleEvents"
        dimensions  = { events = {} }
      }
    },
    {
      for table, operations in local.operations : "${table}/system-errors" => {
        table       = table
        name        = "system-errors"
        description = "DynamoDB answers requests to a state table with HTTP 500: batches are slow, and fail if it goes on. Look at the AWS Health Dashboard."
        threshold   = var.alarms.system_errors
        metric      = "SystemErrors"
        dimensions  = { for operation in operations : lower(operation) => { Operation = operation } }
      }
    },
  )
}

resource "aws_cloudwatch_metric_alarm" "state" {
  for_each = local.alarms

  alarm_name          = "${aws_dynamodb_table.state[each.value.table].name}-${each.value.name}"
  alarm_description   = each.value.description
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.threshold
  alarm_actions       = var.alarms.actions
  ok_actions          = var.alarms.actions
  tags                = var.tags

  # Two periods of the last half hour: one burst raises no alarm, and a query that throttles once in a trigger of up to
  # a quarter of an hour does.
  evaluation_periods  = 6
  datapoints_to_alarm = 2

  # DynamoDB sends no metric where there is nothing to count, and CloudWatch ignores missing data of AWS/DynamoDB
  # whatever treat_missing_data says: without FILL an alarm would never end.
  metric_query {
    id          = "counted"
    expression  = "SUM(FILL(METRICS(), 0))"
    label       = "${each.value.metric} in five minutes"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = each.value.dimensions

    content {
      id = metric_query.key

      metric {
        namespace   = "AWS/DynamoDB"
        metric_name = each.value.metric
        dimensions  = merge({ TableName = aws_dynamodb_table.state[each.value.table].name }, metric_query.value)
        stat        = "Sum"
        period      = 300
      }
    }
  }
}
