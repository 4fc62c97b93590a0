# Alarms: on metrics and dimensions that DynamoDB has.

mock_provider "aws" {}

run "on_both_tables" {
  command = plan

  variables {
    alarms = {
      actions         = ["arn:aws:sns:eu-west-1:111122223333:pager"]
      throttle_events = 7
      system_errors   = 3
    }
    tags = { team = "one" }
  }

  # Throttles by table; system errors by table and operation, which is how DynamoDB counts them.
  assert {
    condition = {
      for alarm in aws_cloudwatch_metric_alarm.state : alarm.alarm_name => [alarm.threshold, [
        for query in alarm.metric_query :
        [query.metric[0].namespace, query.metric[0].metric_name, query.metric[0].stat, query.metric[0].period, query.metric[0].dimensions]
        if length(query.metric) > 0
      ]]
      } == merge(
      {
        for pair in setproduct(["dynastate-delta", "dynastate-snapshot-group"], ["Read", "Write"]) :
        "${pair[0]}-${lower(pair[1])}-throttles" => [7, [["AWS/DynamoDB", "${pair[1]}ThrottleEvents", "Sum", 300, tomap({ TableName = pair[0] })]]]
      },
      {
        for table, operations in {
          dynastate-delta          = ["BatchGetItem", "BatchWriteItem", "Query"]
          dynastate-snapshot-group = ["BatchGetItem", "BatchWriteItem", "DeleteItem", "GetItem", "PutItem", "Query", "UpdateItem"]
          } : "${table}-system-errors" => [3, [
            for operation in operations : ["AWS/DynamoDB", "SystemErrors", "Sum", 300, tomap({ TableName = table, Operation = operation })]
        ]]
      },
    )
    error_message = "Throttled reads and writes of each table, and system errors of every operation, must be counted."
  }

  # DynamoDB sends no metric when all is well, and CloudWatch ignores missing data of AWS/DynamoDB whatever
  # treat_missing_data says: without FILL no alarm would end. The newest period may be filled too early, so that it must
  # not be needed to stay in ALARM.
  assert {
    condition = alltrue([
      for alarm in aws_cloudwatch_metric_alarm.state :
      [for query in alarm.metric_query : query.expression if query.return_data == true] == ["SUM(FILL(METRICS(), 0))"] &&
      alarm.datapoints_to_alarm < alarm.evaluation_periods
    ])
    error_message = "Every alarm must take missing data for zero."
  }

  assert {
    condition = alltrue([
      for alarm in aws_cloudwatch_metric_alarm.state :
      alarm.alarm_actions == toset(["arn:aws:sns:eu-west-1:111122223333:pager"]) &&
      alarm.ok_actions == alarm.alarm_actions && alarm.tags == tomap({ team = "one" })
    ])
    error_message = "Every alarm must notify, tell when it is over, and have the tags."
  }

  # A query that throttles once in a trigger of a quarter of an hour has two such periods in the last six.
  assert {
    condition = alltrue([
      for alarm in aws_cloudwatch_metric_alarm.state : alarm.evaluation_periods == 6 && alarm.datapoints_to_alarm == 2
    ])
    error_message = "Two of six periods must raise an alarm."
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
      for statement in jsondecode(output.writer_policies["all"]).Statement :
      statement.Resource => sort([for action in statement.Action : trimprefix(action, "dynamodb:")]) if statement.Sid != "Tables"
      } == {
      for key, table in aws_dynamodb_table.state : table.arn => sort(flatten([
        for query in aws_cloudwatch_metric_alarm.state["${key}/system-errors"].metric_query :
        [for metric in query.metric : metric.dimensions.Operation]
      ]))
    }
    error_message = "The alarms must count the operations of the writer's policy."
  }
}
