# What the module plans, without AWS: the provider is mocked, only its schema is real.

mock_provider "aws" {}

run "defaults" {
  command = plan

  assert {
    condition     = toset(keys(aws_dynamodb_table.state)) == toset(["delta", "snapshot_group"])
    error_message = "The module must make the delta table and the snapshot-group table, and no other."
  }

  assert {
    condition     = aws_dynamodb_table.state["delta"].name == "dynastate-delta"
    error_message = "The delta table's default name must be dynastate-delta."
  }

  assert {
    condition     = aws_dynamodb_table.state["snapshot_group"].name == "dynastate-snapshot-group"
    error_message = "The snapshot-group table's default name must be dynastate-snapshot-group."
  }

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : table.hash_key == "store_shard"])
    error_message = "Both tables must have the partition key store_shard."
  }

  assert {
    condition     = aws_dynamodb_table.state["delta"].range_key == "part"
    error_message = "The delta table's sort key must be part."
  }

  assert {
    condition     = aws_dynamodb_table.state["snapshot_group"].range_key == "entry"
    error_message = "The snapshot-group table's sort key must be entry."
  }

  assert {
    condition = alltrue([
      for table in aws_dynamodb_table.state :
      { for attribute in table.attribute : attribute.name => attribute.type } == { (table.hash_key) = "S", (table.range_key) = "S" }
    ])
    error_message = "Each table must declare its two keys, as strings, and nothing else."
  }

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : table.billing_mode == "PAY_PER_REQUEST"])
    error_message = "Both tables must be on demand."
  }

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : table.point_in_time_recovery[0].enabled])
    error_message = "Both tables must have point-in-time recovery by default."
  }

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : table.server_side_encryption[0].enabled])
    error_message = "Both tables must be encrypted with a KMS key."
  }

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : table.deletion_protection_enabled])
    error_message = "Both tables must be protected from deletion by default."
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
    tags                      = { team = "one" }
  }

  assert {
    condition     = [for table in aws_dynamodb_table.state : table.name] == ["team.one_delta", "team.one_groups"]
    error_message = "The tables must have the names given."
  }

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : !table.point_in_time_recovery[0].enabled])
    error_message = "Point-in-time recovery must be off for both tables."
  }

  assert {
    condition = alltrue([
      for table in aws_dynamodb_table.state :
      table.server_side_encryption[0].enabled && table.server_side_encryption[0].kms_key_arn == var.kms_key_arn
    ])
    error_message = "Both tables must be encrypted with the key given."
  }

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : !table.deletion_protection_enabled])
    error_message = "Deletion protection must be off for both tables."
  }

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : table.tags == tomap({ team = "one" })])
    error_message = "Both tables must have the tags given."
  }
}

run "the_class_is_standard_unless_asked" {
  command = plan

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : table.table_class == "STANDARD"])
    error_message = "State is written more than it is stored: the class must be STANDARD."
  }

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : length(table.replica) == 0 && !table.stream_enabled])
    error_message = "There must be no replica, and no stream, which would be for replicas."
  }
}

run "infrequent_access" {
  command = plan

  variables {
    table_class = "STANDARD_INFREQUENT_ACCESS"
  }

  assert {
    condition     = alltrue([for table in aws_dynamodb_table.state : table.table_class == "STANDARD_INFREQUENT_ACCESS"])
    error_message = "Both tables must have the class given."
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
