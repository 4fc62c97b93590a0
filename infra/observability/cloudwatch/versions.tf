terraform {
  # 1.9 is the first release in which a variable's validation may look at another variable.
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.80, < 6.0"
    }
  }
}
