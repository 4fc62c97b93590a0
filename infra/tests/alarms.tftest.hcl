# Alarms: on metrics and dimensions that DynamoDB has.

mock_provider "aws" {}

run "none_by_default" {
  command = plan

  assert {
    condition     = length(aws_cloudwatch_metric_alarm.throttles) + length(aws_cloudwatch_metric_alarm.system_errors) == 0
    error_message = "Alarms must be asked for."
  }
}

run "on_both_tables" {
  command = plan

  variables {
    alarms = {
      actions                  = ["arn:aws:sns:eu-west-1:111122223333:pager"]
      throttle_events_a_minute = 7
      system_errors_a_minute   = 3
    }
    tags = { team = "one" }
  }

  assert {
    condition = {
      for alarm in aws_cloudwatch_metric_alarm.throttles :
      alarm.alarm_name => [alarm.namespace, alarm.metric_name, alarm.dimensions.TableName, alarm.statistic, alarm.threshold]
      } == {
      "dynastate-delta-read-throttles"           = ["AWS/DynamoDB", "ReadThrottleEvents", "dynastate-delta", "Sum", 7]
      "dynastate-delta-write-throttles"          = ["AWS/DynamoDB", "WriteThrottleEvents", "dynastate-delta", "Sum", 7]
      "dynastate-snapshot-group-read-throttles"  = ["AWS/DynamoDB", "ReadThrottleEvents", "dynastate-snapshot-group", "Sum", 7]
      "dynastate-snapshot-group-write-throttles" = ["AWS/DynamoDB", "WriteThrottleEvents", "dynastate-snapshot-group", "Sum", 7]
    }
    error_message = "Throttled reads and writes of each table must have an alarm."
  }

  # By table and operation, which is how DynamoDB counts them; and one sum.
  assert {
    condition = {
      for alarm in aws_cloudwatch_metric_alarm.system_errors : alarm.alarm_name => [
        for query in alarm.metric_query : [query.metric[0].metric_name, query.metric[0].dimensions] if length(query.metric) > 0
      ]
      } == {
      for table, operations in {
        dynastate-delta          = ["BatchGetItem", "BatchWriteItem", "Query"]
        dynastate-snapshot-group = ["BatchGetItem", "BatchWriteItem", "DeleteItem", "GetItem", "PutItem", "Query", "UpdateItem"]
        } : "${table}-system-errors" => [
        for operation in operations : ["SystemErrors", tomap({ TableName = table, Operation = operation })]
      ]
    }
    error_message = "System errors of every operation must be counted."
  }

  assert {
    condition = alltrue([
      for alarm in aws_cloudwatch_metric_alarm.system_errors :
      alarm.threshold == 3 && [for query in alarm.metric_query : query.expression if query.return_data == true] == ["SUM(METRICS())"]
    ])
    error_message = "One alarm must be on the sum of a table's system errors."
  }

  # No data is what DynamoDB sends when all is well.
  assert {
    condition = alltrue([
      for alarm in concat(values(aws_cloudwatch_metric_alarm.throttles), values(aws_cloudwatch_metric_alarm.system_errors)) :
      alarm.treat_missing_data == "notBreaching" &&
      alarm.alarm_actions == toset(["arn:aws:sns:eu-west-1:111122223333:pager"]) &&
      alarm.ok_actions == alarm.alarm_actions && alarm.tags == tomap({ team = "one" })
    ])
    error_message = "Every alarm must notify, tell when it is over, be quiet without data, and have the tags."
  }
}

# The operations that are counted are those of the writer's policy, so that none is forgotten.
run "count_what_the_writer_may_do" {
  override_resource {
    target = aws_dynamodb_table.state["delta"]
    values = { arn = "arn:aws:dynamodb:eu-west-1:111122223333:table/delta" }
  }

  override_resource {
    target = aws_dynamodb_table.state["snapshot_group"]
    values = { arn = "arn:aws:dynamodb:eu-west-1:111122223333:table/groups" }
  }

  variables {
    alarms = {}
  }

  assert {
    condition = {
      for statement in jsondecode(output.writer_policies["*"]).Statement :
      statement.Resource => sort([for action in statement.Action : trimprefix(action, "dynamodb:")]) if statement.Sid != "Tables"
      } == {
      for key, alarm in aws_cloudwatch_metric_alarm.system_errors :
      aws_dynamodb_table.state[key].arn => sort(flatten([for query in alarm.metric_query : [for metric in query.metric : metric.dimensions.Operation]]))
    }
    error_message = "The alarms must count the operations of the writer's policy."
  }
}

run "refuses_an_action_that_is_no_arn" {
  command = plan

  variables {
    alarms = { actions = ["pager"] }
  }

  expect_failures = [var.alarms]
}

run "refuses_more_actions_than_cloudwatch_takes" {
  command = plan

  variables {
    alarms = { actions = [for i in range(6) : "arn:aws:sns:eu-west-1:111122223333:pager${i}"] }
  }

  expect_failures = [var.alarms]
}

run "refuses_a_negative_threshold" {
  command = plan

  variables {
    alarms = { throttle_events_a_minute = -1 }
  }

  expect_failures = [var.alarms]
}
