variable "delta_table_name" {
  description = "Name of the delta table, which holds the changes of every version. Unique in its account and region."
  type        = string
  default     = "dynastate-delta"
  nullable    = false

  validation {
    condition     = can(regex("^[a-zA-Z0-9_.-]{3,255}$", var.delta_table_name))
    error_message = "delta_table_name must be 3 to 255 characters, each a letter, a digit or one of _ . -"
  }
}

variable "snapshot_group_table_name" {
  description = "Name of the snapshot-group table, which holds the version lists and the snapshots. Unique in its account and region."
  type        = string
  default     = "dynastate-snapshot-group"
  nullable    = false

  validation {
    condition     = can(regex("^[a-zA-Z0-9_.-]{3,255}$", var.snapshot_group_table_name))
    error_message = "snapshot_group_table_name must be 3 to 255 characters, each a letter, a digit or one of _ . -"
  }

  validation {
    condition     = var.snapshot_group_table_name != var.delta_table_name
    error_message = "snapshot_group_table_name must differ from delta_table_name: the two tables have different keys."
  }
}

variable "point_in_time_recovery" {
  description = "Keep continuous backups of both tables, so that either can be restored to any second of the recovery period."
  type        = bool
  default     = true
  nullable    = false
}

variable "kms_key_arn" {
  description = "ARN of the customer managed KMS key that encrypts both tables. Null: the AWS managed key of DynamoDB, alias/aws/dynamodb."
  type        = string
  default     = null

  # A key's ARN and not an alias's: DynamoDB answers with the key, so an alias would show as drift in every plan.
  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[a-zA-Z0-9-]+$", var.kms_key_arn))
    error_message = "kms_key_arn must be the ARN of a key, as in arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab; an alias or a bare key id is not accepted."
  }
}

variable "deletion_protection" {
  description = "Refuse to delete either table. To destroy the tables, apply with false first."
  type        = bool
  default     = true
  nullable    = false
}

variable "namespaces" {
  description = "Namespaces to give policies for: what a query has as its setting namespace, or the 32 hex digits it takes by itself. \"*\" stands for all."
  type        = set(string)
  default     = ["*"]
  nullable    = false

  # No other wildcard may get into a policy's condition.
  validation {
    condition     = alltrue([for namespace in var.namespaces : can(regex("^([a-zA-Z0-9._-]{1,128}|[*])$", namespace))])
    error_message = "namespaces must each be \"*\", or 1 to 128 characters, each a letter, a digit or one of . _ -"
  }
}

variable "tags" {
  description = "Tags for both tables, on top of the provider's default tags."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = length(var.tags) <= 50
    error_message = "tags must hold at most 50 tags: AWS takes no more on one resource."
  }

  validation {
    condition = alltrue([
      for key, value in var.tags :
      can(regex("^[\\p{L}\\p{Z}\\p{N}_.:/=+@-]{1,128}$", key)) &&
      can(regex("^[\\p{L}\\p{Z}\\p{N}_.:/=+@-]{0,256}$", value)) &&
      !startswith(lower(key), "aws:")
    ])
    error_message = "tags must have keys of 1 to 128 and values of at most 256 characters, each a letter, a digit, a space or one of _ . : / = + @ -; no key may begin with aws:"
  }
}
