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
  description = "ARN of the customer managed KMS key that encrypts both tables, and the bucket. Null: the AWS managed key of DynamoDB, alias/aws/dynamodb, and S3's own for the bucket."
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

variable "provisioned_capacity" {
  description = "Provisioned capacity units per second of each table. Autoscaling keeps them between min and max, at target_utilization_percent. Null: on demand."
  type = object({
    delta = object({
      read  = object({ min = number, max = number })
      write = object({ min = number, max = number })
    })
    snapshot_group = object({
      read  = object({ min = number, max = number })
      write = object({ min = number, max = number })
    })
    target_utilization_percent = optional(number, 70)
  })
  default = null

  validation {
    condition = var.provisioned_capacity == null || alltrue([
      for units in try([
        var.provisioned_capacity.delta.read, var.provisioned_capacity.delta.write,
        var.provisioned_capacity.snapshot_group.read, var.provisioned_capacity.snapshot_group.write,
      ], []) : units.min >= 1 && units.min <= units.max && floor(units.min) == units.min && floor(units.max) == units.max
    ])
    error_message = "provisioned_capacity must have whole numbers of units, at least 1, and no min above its max."
  }

  validation {
    condition = var.provisioned_capacity == null || (
      try(var.provisioned_capacity.target_utilization_percent, 70) >= 20 && try(var.provisioned_capacity.target_utilization_percent, 70) <= 90
    )
    error_message = "provisioned_capacity must have a target_utilization_percent from 20 to 90: DynamoDB takes no other."
  }
}

variable "on_demand_throughput" {
  description = "Maximum request units per second of each table in on-demand mode. DynamoDB throttles what exceeds it and does not charge for it. Null: the account's quota. A limit that was set remains until -1 has been applied."
  type = object({
    delta = optional(object({
      max_read_request_units  = optional(number)
      max_write_request_units = optional(number)
    }))
    snapshot_group = optional(object({
      max_read_request_units  = optional(number)
      max_write_request_units = optional(number)
    }))
  })
  default  = {}
  nullable = false

  validation {
    condition = alltrue([
      for units in flatten([for most in values(var.on_demand_throughput) : most == null ? [] : values(most)]) :
      units == null ? true : units == -1 || (units >= 1 && floor(units) == units)
    ])
    error_message = "on_demand_throughput must have whole numbers of units, at least 1, or -1 to take a limit away."
  }

  validation {
    condition     = var.provisioned_capacity == null || alltrue([for most in values(var.on_demand_throughput) : most == null])
    error_message = "on_demand_throughput must be left out with provisioned_capacity, whose max is the limit then."
  }
}

variable "warm_throughput" {
  description = "Warm throughput of each table, in units per second. It can only be raised. Needs the AWS CLI where Terraform runs; AWS charges once for each increase."
  type = object({
    delta = optional(object({
      read_units_per_second  = number
      write_units_per_second = number
    }))
    snapshot_group = optional(object({
      read_units_per_second  = number
      write_units_per_second = number
    }))
  })
  default  = {}
  nullable = false

  validation {
    condition = alltrue([
      for units in flatten([for warm in values(var.warm_throughput) : warm == null ? [] : values(warm)]) :
      units >= 1 && floor(units) == units
    ])
    error_message = "warm_throughput must have whole numbers of units, at least 1."
  }

  validation {
    condition = var.provisioned_capacity != null || alltrue([
      for warm in values(var.warm_throughput) :
      warm == null ? true : warm.read_units_per_second >= 12000 && warm.write_units_per_second >= 4000
    ])
    error_message = "warm_throughput of a table on demand must be at least 12000 read and 4000 write units a second: it has as much without being asked."
  }
}

variable "table_class" {
  description = "STANDARD, or STANDARD_INFREQUENT_ACCESS: cheaper storage, dearer requests."
  type        = string
  default     = "STANDARD"
  nullable    = false

  validation {
    condition     = contains(["STANDARD", "STANDARD_INFREQUENT_ACCESS"], var.table_class)
    error_message = "table_class must be STANDARD or STANDARD_INFREQUENT_ACCESS."
  }
}

variable "replicas" {
  description = "Regions (for example eu-west-1) that get a replica of both tables, each with the ARN of a KMS key of that Region if kms_key_arn is set."
  type        = map(object({ kms_key_arn = optional(string) }))
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue([for region in keys(var.replicas) : can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]+$", region))])
    error_message = "replicas must be by the code of an AWS Region, as in eu-west-1."
  }

  validation {
    condition     = length(var.replicas) == 0 || var.stream_enabled
    error_message = "replicas need stream_enabled = true."
  }

  # Of provisioned tables DynamoDB replicates only those that autoscaling moves already, and Terraform makes autoscaling
  # after the table.
  validation {
    condition     = length(var.replicas) == 0 || var.provisioned_capacity == null
    error_message = "replicas need tables on demand: leave provisioned_capacity out."
  }

  validation {
    condition = alltrue([
      for region, replica in var.replicas : var.kms_key_arn == null ? replica.kms_key_arn == null :
      can(regex("^arn:aws[a-z-]*:kms:${region}:[0-9]{12}:key/[a-zA-Z0-9-]+$", replica.kms_key_arn))
    ])
    error_message = "replicas must each have the kms_key_arn of a key in their own Region if the tables have kms_key_arn, and none otherwise."
  }
}

variable "stream_enabled" {
  description = "Keep a stream of both tables, which replicas need. Leave it on in the apply that removes the last replica."
  type        = bool
  default     = false
  nullable    = false
}

variable "alarms" {
  description = "CloudWatch alarms on throttled requests and system errors of each table: how many in five minutes are tolerated, and the ARNs to notify (for example of SNS topics). Null: no alarms."
  type = object({
    actions         = optional(set(string), [])
    throttle_events = optional(number, 100)
    system_errors   = optional(number, 10)
  })
  default = null

  validation {
    condition     = alltrue([for arn in try(var.alarms.actions, []) : can(regex("^arn:aws[a-z-]*:[a-z0-9-]+:[a-z0-9-]*:[0-9]*:.+$", arn))])
    error_message = "alarms must have ARNs as actions, as in arn:aws:sns:eu-west-1:111122223333:topic."
  }

  validation {
    condition     = try(length(var.alarms.actions), 0) <= 5
    error_message = "alarms must have at most 5 actions: CloudWatch takes no more."
  }

  validation {
    condition     = try(var.alarms.throttle_events, 0) >= 0 && try(var.alarms.system_errors, 0) >= 0
    error_message = "alarms must have thresholds of at least 0."
  }
}

variable "namespaces" {
  description = "Sets of namespaces to write policies for, by a name of yours for each: what one role may use. A namespace is a query's setting namespace, or the 32 hex digits of its default. \"*\" means all."
  type        = map(set(string))
  default     = { all = ["*"] }
  nullable    = false

  # No other wildcard may get into a policy's condition.
  validation {
    condition     = alltrue([for namespace in flatten([for each in values(var.namespaces) : tolist(each)]) : can(regex("^([a-zA-Z0-9._-]{1,128}|[*])$", namespace))])
    error_message = "namespaces must each be \"*\", or 1 to 128 characters, each a letter, a digit or one of . _ -"
  }

  validation {
    condition     = alltrue([for each in values(var.namespaces) : length(each) > 0])
    error_message = "namespaces must have one or more under each name."
  }
}

variable "cross_account_readers" {
  description = "Readers in other accounts, by the names of namespaces: ARNs of roles or users, or account ids. Needs kms_key_arn."
  type        = map(set(string))
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue([for name in keys(var.cross_account_readers) : contains(keys(var.namespaces), name)])
    error_message = "cross_account_readers must have names that namespaces has."
  }

  # Neither everyone nor a service: a policy that lets these read state is a mistake.
  validation {
    condition     = alltrue([for principal in flatten([for each in values(var.cross_account_readers) : tolist(each)]) : can(regex("^([0-9]{12}|arn:aws[a-z-]*:iam::[0-9]{12}:(root|(role|user)/[a-zA-Z0-9+=,.@_/-]+))$", principal))])
    error_message = "cross_account_readers must each be an account id, or the ARN of an account, a role or a user, as in arn:aws:iam::444455556666:role/readers"
  }

  validation {
    condition     = alltrue([for each in values(var.cross_account_readers) : length(each) > 0])
    error_message = "cross_account_readers must have one or more under each name."
  }
}

variable "objects_bucket_name" {
  description = "Name of a bucket to make for large parts, in the Region of the tables. Null: no bucket."
  type        = string
  default     = null

  validation {
    condition     = var.objects_bucket_name == null || can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.objects_bucket_name))
    error_message = "objects_bucket_name must be 3 to 63 characters, each a lower-case letter, a digit or -, and neither begin nor end with -"
  }
}

variable "objects_prefix" {
  description = "Prefix of the names of all objects in that bucket, without slashes at its ends. Empty: none."
  type        = string
  default     = ""
  nullable    = false

  validation {
    condition     = can(regex("^([A-Za-z0-9!_.'()-]+(/[A-Za-z0-9!_.'()-]+)*)?$", var.objects_prefix))
    error_message = "objects_prefix must be of S3's safe characters but *, without slashes at its ends."
  }

  validation {
    condition     = length(var.objects_prefix) <= 512
    error_message = "objects_prefix must have at most 512 characters: dynastate refuses a longer prefix."
  }

  validation {
    condition     = var.objects_prefix == "" || var.objects_bucket_name != null
    error_message = "objects_prefix must be empty without objects_bucket_name: there is no bucket for it."
  }
}

variable "objects_restored_from" {
  description = "Names of the snapshot-group tables from whose backups these tables were restored, as long as there are versions with objects of those: writers and readers may read them. Empty: these tables were not restored under another name."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for name in var.objects_restored_from : can(regex("^[a-zA-Z0-9_.-]{3,255}$", name))]) && length(distinct(var.objects_restored_from)) == length(var.objects_restored_from)
    error_message = "objects_restored_from must be names of tables, each once: 3 to 255 characters, each a letter, a digit or one of _ . -"
  }

  validation {
    condition     = length(var.objects_restored_from) == 0 || var.objects_bucket_name != null
    error_message = "objects_restored_from must be empty without objects_bucket_name: there is no bucket for it."
  }
}

variable "objects_noncurrent_days" {
  description = "Days for which the bucket keeps objects that clean-up has deleted, so that tables can be restored to a second within them: as many as backups reach back. They are paid for, and are many. Null: none are kept."
  type        = number
  default     = null

  validation {
    condition     = var.objects_noncurrent_days == null || try(var.objects_noncurrent_days >= 1 && floor(var.objects_noncurrent_days) == var.objects_noncurrent_days, false)
    error_message = "objects_noncurrent_days must be a whole number, at least 1."
  }

  validation {
    condition     = var.objects_noncurrent_days == null || var.objects_bucket_name != null
    error_message = "objects_noncurrent_days must be null without objects_bucket_name: there is no bucket for it."
  }
}

variable "tags" {
  description = "Tags for every resource of the module, in addition to the provider's default tags."
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
