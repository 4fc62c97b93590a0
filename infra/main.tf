# The two tables differ in name and sort key and in nothing else, so there is one resource:
# what is changed for one table cannot be forgotten for the other.
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
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = local.hash_key
  range_key                   = each.value.range_key
  deletion_protection_enabled = var.deletion_protection
  tags                        = var.tags

  # Only keys are declared: DynamoDB wants no schema for the other attributes.
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

  # Enabled without a key means the AWS managed key. Not enabled would still encrypt, but with a key that AWS owns
  # and that shows neither in KMS nor in CloudTrail.
  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }
}
