# What the module plans, without AWS: the provider is mocked, only its schema is real.

mock_provider "aws" {}

run "defaults" {
  command = plan

  assert {
    condition = {
      for key, table in aws_dynamodb_table.state : key => [
        table.name, table.hash_key, table.range_key, { for attribute in table.attribute : attribute.name => attribute.type }
      ]
      } == {
      delta          = ["dynastate-delta", "store_shard", "part", { store_shard = "S", part = "S" }]
      snapshot_group = ["dynastate-snapshot-group", "store_shard", "entry", { store_shard = "S", entry = "S" }]
    }
    error_message = "The module must make these two tables, with these keys, as strings, and nothing else."
  }

  assert {
    condition = alltrue([
      for table in aws_dynamodb_table.state :
      table.billing_mode == "PAY_PER_REQUEST" && length(table.on_demand_throughput) == 0 && table.table_class == "STANDARD"
    ])
    error_message = "Both tables must be on demand, limited by the account's quota only, and of the class STANDARD: state is written more than it is stored."
  }

  assert {
    condition = alltrue([
      for table in aws_dynamodb_table.state :
      table.point_in_time_recovery[0].enabled && table.server_side_encryption[0].enabled && table.deletion_protection_enabled
    ])
    error_message = "Both tables must have point-in-time recovery, encryption with a KMS key, and protection from deletion."
  }

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : length(table.replica) == 0 && !table.stream_enabled])
    error_message = "There must be no replica, and no stream, which would be for replicas."
  }

  assert {
    condition     = length(aws_appautoscaling_target.capacity) + length(aws_appautoscaling_policy.capacity) + length(terraform_data.warm_throughput) == 0
    error_message = "Tables on demand need no autoscaling, and are not warmed unless asked for."
  }

  assert {
    condition     = length(aws_cloudwatch_metric_alarm.state) == 0
    error_message = "Alarms must be asked for."
  }
}

run "every_variable_reaches_both_tables" {
  command = plan

  variables {
    delta_table_name          = "team.one_delta"
    snapshot_group_table_name = "team.one_groups"
    point_in_time_recovery    = false
    kms_key_arn               = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    deletion_protection       = false
    table_class               = "STANDARD_INFREQUENT_ACCESS"
    tags                      = { team = "one" }
  }

  assert {
    condition     = [for table in aws_dynamodb_table.state : table.name] == ["team.one_delta", "team.one_groups"]
    error_message = "The tables must have the names given."
  }

  assert {
    condition = alltrue([
      for table in aws_dynamodb_table.state : !table.point_in_time_recovery[0].enabled && !table.deletion_protection_enabled
    ])
    error_message = "Point-in-time recovery and deletion protection must be off for both tables."
  }

  assert {
    condition = alltrue([
      for table in aws_dynamodb_table.state :
      table.server_side_encryption[0].enabled && table.server_side_encryption[0].kms_key_arn == var.kms_key_arn
    ])
    error_message = "Both tables must be encrypted with the key given."
  }

  assert {
    condition = alltrue([
      for table in aws_dynamodb_table.state : table.table_class == "STANDARD_INFREQUENT_ACCESS" && table.tags == tomap({ team = "one" })
    ])
    error_message = "Both tables must have the class and the tags given."
  }
}

run "replicas_of_both_tables" {
  command = plan

  variables {
    kms_key_arn    = "arn:aws:kms:eu-west-1:111122223333:key/mrk-1"
    stream_enabled = true
    replicas = {
      eu-central-1 = { kms_key_arn = "arn:aws:kms:eu-central-1:111122223333:key/mrk-1" }
      us-east-1    = { kms_key_arn = "arn:aws:kms:us-east-1:111122223333:key/mrk-1" }
    }
  }

  assert {
    condition = alltrue([
      for table in aws_dynamodb_table.state : {
        for replica in table.replica : replica.region_name => [replica.kms_key_arn, replica.point_in_time_recovery, replica.propagate_tags]
        } == {
        eu-central-1 = ["arn:aws:kms:eu-central-1:111122223333:key/mrk-1", true, true]
        us-east-1    = ["arn:aws:kms:us-east-1:111122223333:key/mrk-1", true, true]
      }
    ])
    error_message = "Both tables must have both replicas, backed up, encrypted with their Region's key, and tagged."
  }

  assert {
    condition = alltrue([
      for table in aws_dynamodb_table.state : table.stream_enabled && table.stream_view_type == "NEW_AND_OLD_IMAGES"
    ])
    error_message = "Replicas are fed from the stream."
  }
}

# DynamoDB refuses to end the stream of a table that has a replica, and the provider sends that first.
run "the_stream_outlives_the_last_replica" {
  command = plan

  variables {
    stream_enabled = true
  }

  assert {
    condition = alltrue([
      for table in aws_dynamodb_table.state : length(table.replica) == 0 && table.stream_enabled && table.stream_view_type == "NEW_AND_OLD_IMAGES"
    ])
    error_message = "It must be possible to remove replicas and keep the stream."
  }
}
