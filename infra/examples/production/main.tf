# Both tables as a platform team would run them: with their own encryption key, a cost limit, alarms that notify, and
# a policy for each query, ready to attach to its role. With objects_bucket_name also the bucket for large parts.

terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.80, < 6.0"
    }
  }
}

variable "region" {
  description = "AWS Region of the tables: preferably the one Spark runs in."
  type        = string
  default     = "us-east-1"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]+$", var.region))
    error_message = "region must be the code of an AWS region, as in eu-west-1."
  }
}

variable "name" {
  description = "Prefix of the names of tables, key, topic and policies."
  type        = string
  default     = "streaming-state"
  nullable    = false

  validation {
    condition     = can(regex("^[a-zA-Z0-9_-]{1,64}$", var.name))
    error_message = "name must be 1 to 64 characters, each a letter, a digit or one of _ -"
  }
}

variable "namespaces" {
  description = "Sets of namespaces of the queries that keep their state in these tables (their setting namespace), by a name for each. A set gets one policy for writers and one for readers: IAM attaches at most 10 policies to a role."
  type        = map(set(string))
  default     = { orders = ["orders"] }
  nullable    = false

  validation {
    condition     = alltrue([for name in keys(var.namespaces) : can(regex("^[a-zA-Z0-9._-]{1,56}$", name))])
    error_message = "namespaces must have names of 1 to 56 characters, each a letter, a digit or one of . _ -: a policy's name has at most 128."
  }

  validation {
    condition     = alltrue([for each in values(var.namespaces) : !contains(each, "*")])
    error_message = "namespaces must not be \"*\": every query could change the state of every other one."
  }
}

variable "max_write_request_units" {
  description = "The most write units a second that each table should give: 4,000 are $9 an hour in us-east-1. DynamoDB takes it for a target, and bursts may cost more."
  type        = number
  default     = 4000
  nullable    = false

  validation {
    condition     = var.max_write_request_units >= 1000 && floor(var.max_write_request_units) == var.max_write_request_units
    error_message = "max_write_request_units must be a whole number of at least 1000, which one partition key can take: below it, queries wait for the limit only."
  }
}

variable "max_read_request_units" {
  description = "The most read units a second that each table should give: 12,000 are $5.40 an hour in us-east-1, and at best 48 MB of state a second at a restart."
  type        = number
  default     = 12000
  nullable    = false

  validation {
    condition     = var.max_read_request_units >= 1000 && floor(var.max_read_request_units) == var.max_read_request_units
    error_message = "max_read_request_units must be a whole number of at least 1000, which are 4 MB of state a second at a restart."
  }
}

variable "objects_bucket_name" {
  description = "Name of a bucket to make for large parts, unique in all of AWS: docs/objects-in-s3.md. Null: no bucket."
  type        = string
  default     = null

  validation {
    condition     = var.objects_bucket_name == null || can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.objects_bucket_name))
    error_message = "objects_bucket_name must be 3 to 63 characters, each a lower-case letter, a digit or -, and neither begin nor end with -"
  }
}

variable "deletion_protection" {
  description = "Refuse to delete the tables. Apply with false before you destroy this example."
  type        = bool
  default     = true
  nullable    = false
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { application = var.name }
  }
}

data "aws_caller_identity" "this" {}

data "aws_partition" "this" {}

locals {
  services = concat(["dynamodb"], var.objects_bucket_name == null ? [] : ["s3"])

  # Of items and, with a bucket, of objects: one policy for each role, since IAM attaches at most 10.
  policies = {
    for role, documents in {
      writer = [module.dynastate.writer_policies, module.dynastate.objects_writer_policies]
      reader = [module.dynastate.reader_policies, module.dynastate.objects_reader_policies]
      } : role => {
      for name in keys(var.namespaces) : name => jsonencode({
        Version   = "2012-10-17"
        Statement = flatten([for each in documents : jsondecode(each[name]).Statement if can(each[name])])
      })
    }
  }
}

# A role that may use the tables may use their key, but only through DynamoDB, and through S3 for the bucket. So the
# policies of the module suffice.
resource "aws_kms_key" "state" {
  description         = "Encrypts the tables of ${var.name}"
  enable_key_rotation = true

  # The longest there is. Backups of deleted tables need the key for 35 days: see "Changing and destroying".
  deletion_window_in_days = 30

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "Administration"
        Effect    = "Allow"
        Principal = { AWS = "arn:${data.aws_partition.this.partition}:iam::${data.aws_caller_identity.this.account_id}:root" }
        Action    = "kms:*"
        Resource  = "*"
      },
      {
        Sid       = "ThroughServices"
        Effect    = "Allow"
        Principal = { AWS = "*" }
        Action    = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:CreateGrant", "kms:DescribeKey"]
        Resource  = "*"
        Condition = {
          StringEquals = {
            "kms:CallerAccount" = data.aws_caller_identity.this.account_id
            "kms:ViaService"    = [for service in local.services : "${service}.${var.region}.amazonaws.com"]
          }
        }
      },
    ]
  })
}

# Subscribe the people on call.
resource "aws_sns_topic" "alarms" {
  name = "${var.name}-alarms"
}

module "dynastate" {
  source = "../.."

  delta_table_name          = "${var.name}-delta"
  snapshot_group_table_name = "${var.name}-snapshot-group"
  namespaces                = var.namespaces
  kms_key_arn               = aws_kms_key.state.arn
  deletion_protection       = var.deletion_protection
  objects_bucket_name       = var.objects_bucket_name

  # As long as the tables' backups reach back: what they name can be restored then.
  objects_noncurrent_days = var.objects_bucket_name == null ? null : 35

  on_demand_throughput = {
    for table in ["delta", "snapshot_group"] : table => {
      max_read_request_units  = var.max_read_request_units
      max_write_request_units = var.max_write_request_units
    }
  }

  alarms = {
    actions = [aws_sns_topic.alarms.arn]
  }
}

resource "aws_iam_policy" "writer" {
  for_each = var.namespaces

  name        = "${var.name}-${each.key}-writer"
  description = "For the role of the executors of ${join(", ", each.value)}"
  policy      = local.policies["writer"][each.key]
}

resource "aws_iam_policy" "reader" {
  for_each = var.namespaces

  name        = "${var.name}-${each.key}-reader"
  description = "For readers of the state of ${join(", ", each.value)}"
  policy      = local.policies["reader"][each.key]
}

output "spark_conf" {
  description = "Give each of these to spark-submit with --conf key=value, and spark.sql.streaming.stateStore.dynastate.namespace."
  value       = module.dynastate.spark_conf
}

output "writer_policy_arns" {
  description = "ARNs of the policies for the roles of Spark's executors, by the names of namespaces."
  value       = { for name, policy in aws_iam_policy.writer : name => policy.arn }
}

output "reader_policy_arns" {
  description = "ARNs of the policies for readers of state, by the names of namespaces."
  value       = { for name, policy in aws_iam_policy.reader : name => policy.arn }
}

output "alarm_topic_arn" {
  description = "ARN of the topic that the alarms notify."
  value       = aws_sns_topic.alarms.arn
}
