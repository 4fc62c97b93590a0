# The two tables differ only in name and sort key, so there is one resource:
# a change for one table cannot be forgotten for the other.
#
# The keys are the stored format. Changing one makes Terraform replace the table, and its state is lost with it.
locals {
  hash_key = "store_shard"

  tables = {
    delta = {
      name      = var.delta_table_name
      range_key = "part"
    }
    snapshot_group = {
      name      = var.snapshot_group_table_name
      range_key = "entry"
    }
  }
}

resource "aws_dynamodb_table" "state" {
  for_each = local.tables

  name                        = each.value.name
  billing_mode                = var.provisioned_capacity == null ? "PAY_PER_REQUEST" : "PROVISIONED"
  read_capacity               = var.provisioned_capacity == null ? null : var.provisioned_capacity[each.key].read.min
  write_capacity              = var.provisioned_capacity == null ? null : var.provisioned_capacity[each.key].write.min
  hash_key                    = local.hash_key
  range_key                   = each.value.range_key
  table_class                 = var.table_class
  deletion_protection_enabled = var.deletion_protection
  tags                        = var.tags

  # A replica is fed from the table's stream, which DynamoDB keeps as long as there is one: so the two are removed one
  # after the other.
  stream_enabled   = var.stream_enabled
  stream_view_type = var.stream_enabled ? "NEW_AND_OLD_IMAGES" : null

  # Only keys are declared: DynamoDB takes no schema for the other attributes.
  attribute {
    name = local.hash_key
    type = "S"
  }

  attribute {
    name = each.value.range_key
    type = "S"
  }

  point_in_time_recovery {
    enabled = var.point_in_time_recovery
  }

  # Enabled without a key means the AWS managed key. Disabled would mean a key that AWS owns, which appears
  # neither in KMS nor in CloudTrail.
  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }
  dynamic "on_demand_throughput" {
    for_each = [for most in [var.on_demand_throughput[each.key]] : most if most != null]

    content {
      max_read_request_units  = on_demand_throughput.value.max_read_request_units
      max_write_request_units = on_demand_throughput.value.max_write_request_units
    }
  }

  dynamic "replica" {
    for_each = var.replicas

    content {
      region_name            = replica.key
      kms_key_arn            = replica.value.kms_key_arn
      point_in_time_recovery = var.point_in_time_recovery
      propagate_tags         = true
    }
  }

  # Autoscaling changes the capacity: its choice is not drift. A table on demand has no capacity to ignore.
  lifecycle {
    ignore_changes = [read_capacity, write_capacity]
  }
}
