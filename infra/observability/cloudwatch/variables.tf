variable "queries" {
  description = "Queries to watch, by their names. An alarm is made for each threshold above 0: minutes without a batch, seconds of a batch, percent of requests that are throttled, dollars a day, seconds of lag of the watermark. operators are the ids of its stateful operators."
  type = map(object({
    operators             = optional(set(string), ["0"])
    stalled_minutes       = optional(number, 30)
    batch_seconds         = optional(number, 0)
    throttled_percent     = optional(number, 5)
    dollars_a_day         = optional(number, 0)
    watermark_lag_seconds = optional(number, 0)
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for name in keys(var.queries) : can(regex("^[\\x21-\\x7e]([\\x20-\\x7e]{0,98}[\\x21-\\x7e])?$", name))])
    error_message = "queries must have names of 1 to 100 printable ASCII characters: alarms are named by them."
  }

  validation {
    condition     = alltrue([for query in values(var.queries) : length(query.operators) >= 1 && length(query.operators) <= 4])
    error_message = "queries must have 1 to 4 operators each: an alarm takes 10 metrics."
  }

  validation {
    condition = alltrue(flatten([
      for query in values(var.queries) : [
        for threshold in [query.stalled_minutes, query.batch_seconds, query.throttled_percent, query.dollars_a_day, query.watermark_lag_seconds] :
        threshold >= 0
      ]
    ]))
    error_message = "queries must have thresholds above 0, or 0 for no alarm."
  }

  validation {
    condition     = alltrue([for query in values(var.queries) : query.stalled_minutes == 0 || (query.stalled_minutes >= 5 && query.stalled_minutes <= 1440)])
    error_message = "queries must have stalled_minutes from 5 to 1,440: CloudWatch looks back a day at most."
  }
}

variable "actions" {
  description = "ARNs to notify when an alarm begins and ends, for example of SNS topics."
  type        = set(string)
  default     = []
  nullable    = false

  validation {
    condition     = length(var.actions) <= 5 && alltrue([for arn in var.actions : can(regex("^arn:aws[a-z-]*:[a-z0-9-]+:[a-z0-9-]*:[0-9]*:.+$", arn))])
    error_message = "actions must be at most 5 ARNs, as in arn:aws:sns:eu-west-1:111122223333:topic."
  }
}

variable "region" {
  description = "AWS Region of the metrics, which the dashboard shows."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]+$", var.region))
    error_message = "region must be the code of an AWS region, as in eu-west-1."
  }
}

variable "dashboard_name" {
  description = "Name of the dashboard, which shows every query that exports metrics. Null: no dashboard."
  type        = string
  default     = "dynastate"

  validation {
    condition     = var.dashboard_name == null ? true : can(regex("^[A-Za-z0-9_-]{1,255}$", var.dashboard_name))
    error_message = "dashboard_name must be 1 to 255 letters, digits, - and _."
  }
}

variable "tags" {
  description = "Tags for every alarm."
  type        = map(string)
  default     = {}
  nullable    = false
}
