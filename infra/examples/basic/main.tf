# Both tables with every default: on demand, backed up, encrypted, protected from deletion.

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

variable "deletion_protection" {
  description = "Refuse to delete the tables. Apply with false before you destroy this example."
  type        = bool
  default     = true
  nullable    = false
}

provider "aws" {
  region = var.region
}

module "dynastate" {
  source = "../.."

  deletion_protection = var.deletion_protection

  tags = {
    application = "dynastate"
  }
}

output "spark_conf" {
  description = "Give each of these to spark-submit with --conf key=value."
  value       = module.dynastate.spark_conf
}
