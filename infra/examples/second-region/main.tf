# Both tables as strongly consistent replicas in two Regions, and a witness in a third, or a third replica: a commit that
# has returned is in two Regions, and a query continues in the other one when the first is lost (docs/second-region.md).
#
# An example of its own, since this needs the AWS provider 6, and the module takes 5. We have not run it on AWS: the
# provider at hand, 5.100, knows neither consistency_mode nor global_table_witness.

terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 6.29, < 7.0"
    }
  }
}

variable "region" {
  description = "AWS Region in which queries run."
  type        = string
  default     = "us-east-1"
  nullable    = false
}

variable "second_region" {
  description = "AWS Region in which they continue when the first is lost."
  type        = string
  default     = "us-east-2"
  nullable    = false
}

variable "third_region" {
  description = "AWS Region of the witness, or of the third replica."
  type        = string
  default     = "us-west-2"
  nullable    = false

  # DynamoDB has strong consistency between these only, by the documentation of 2026.
  validation {
    condition = anytrue([
      for regions in [
        ["us-east-1", "us-east-2", "us-west-2"],
        ["eu-west-1", "eu-west-2", "eu-west-3", "eu-central-1"],
        ["ap-northeast-1", "ap-northeast-2", "ap-northeast-3"],
      ] : length(setintersection(regions, [var.region, var.second_region, var.third_region])) == 3
    ])
    error_message = "region, second_region and third_region must be three, all of one set: us-east-1, us-east-2, us-west-2; or of eu-west-1, eu-west-2, eu-west-3, eu-central-1; or ap-northeast-1, ap-northeast-2, ap-northeast-3."
  }
}

variable "third_is_witness" {
  description = "Keep only what a quorum needs in the third Region, which then has no tables to read. False: a third replica."
  type        = bool
  default     = true
  nullable    = false
}

variable "name" {
  description = "Prefix of the names of the tables."
  type        = string
  default     = "streaming-state"
  nullable    = false

  validation {
    condition     = can(regex("^[a-zA-Z0-9_.-]{1,64}$", var.name))
    error_message = "name must be 1 to 64 characters, each a letter, a digit or one of _ . -"
  }
}

variable "namespaces" {
  description = "Sets of namespaces to write policies for, by a name of yours for each."
  type        = map(set(string))
  nullable    = false

  validation {
    condition     = alltrue([for namespace in flatten([for each in values(var.namespaces) : tolist(each)]) : can(regex("^[a-zA-Z0-9._-]{1,128}$", namespace))])
    error_message = "namespaces must each be 1 to 128 characters, each a letter, a digit or one of . _ -"
  }
}

variable "deletion_protection" {
  description = "Refuse to delete any replica. Apply with false before you destroy this example."
  type        = bool
  default     = true
  nullable    = false
}

provider "aws" {
  region = var.region
}

locals {
  tables = {
    delta          = "part"
    snapshot_group = "entry"
  }

  replicas = var.third_is_witness ? [var.second_region] : [var.second_region, var.third_region]
  regions  = concat([var.region], local.replicas)

  # The ARN of a replica is that of its table, with its own Region.
  table_arns = {
    for region in local.regions : region => {
      for key, table in aws_dynamodb_table.state : "${key}_table_arn" => replace(table.arn, "/:dynamodb:[^:]*:/", ":dynamodb:${region}:")
    }
  }

  policies = {
    for role in ["writer", "reader"] : role => {
      for name, namespaces in var.namespaces : name => {
        for region in local.regions : region => jsonencode(jsondecode(templatefile(
          "${path.module}/../../policies/${role}.json.tftpl",
          merge(local.table_arns[region], { leading_keys = jsonencode([for namespace in namespaces : "${namespace}/*"]) }),
        )))
      }
    }
  }
}

# DynamoDB makes a table strongly consistent between Regions only while it is empty, and never changes it after that.
resource "aws_dynamodb_table" "state" {
  for_each = local.tables

  name                        = "${var.name}-${replace(each.key, "_", "-")}"
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = "store_shard"
  range_key                   = each.value
  deletion_protection_enabled = var.deletion_protection

  attribute {
    name = "store_shard"
    type = "S"
  }

  attribute {
    name = each.value
    type = "S"
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled = true
  }

  dynamic "replica" {
    for_each = local.replicas

    content {
      region_name                 = replica.value
      consistency_mode            = "STRONG"
      deletion_protection_enabled = var.deletion_protection
      point_in_time_recovery      = true
      propagate_tags              = true
    }
  }

  dynamic "global_table_witness" {
    for_each = var.third_is_witness ? [var.third_region] : []

    content {
      region_name = global_table_witness.value
    }
  }
}

output "spark_conf" {
  description = "Settings of Spark by Region. Give each of these to spark-submit with --conf key=value."
  value = {
    for region in local.regions : region => {
      "spark.sql.streaming.stateStore.dynastate.region"        = region
      "spark.sql.streaming.stateStore.dynastate.deltaTable"    = aws_dynamodb_table.state["delta"].name
      "spark.sql.streaming.stateStore.dynastate.snapshotTable" = aws_dynamodb_table.state["snapshot_group"].name
    }
  }
}

output "writer_policies" {
  description = "IAM policy documents (JSON) for Spark's executors, by the names of namespaces, then by Region."
  value       = local.policies.writer
}

output "reader_policies" {
  description = "IAM policy documents (JSON) for readers of state, by the names of namespaces, then by Region."
  value       = local.policies.reader
}
