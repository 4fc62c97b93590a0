# What the example makes, without AWS: the provider is mocked, only its schema is real.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "111122223333" }
  }

  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }

  mock_resource "aws_kms_key" {
    defaults = { arn = "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab" }
  }

  mock_resource "aws_sns_topic" {
    defaults = { arn = "arn:aws:sns:us-east-1:111122223333:streaming-state-alarms" }
  }
}

variables {
  namespaces = { orders = ["orders"], team = ["clicks", "visits"] }
}

run "it_points_spark_at_the_tables" {
  assert {
    condition = output.spark_conf == {
      "spark.sql.streaming.stateStore.dynastate.deltaTable"    = "streaming-state-delta"
      "spark.sql.streaming.stateStore.dynastate.snapshotTable" = "streaming-state-snapshot-group"
    }
    error_message = "spark_conf must name both tables."
  }

  assert {
    condition     = toset(keys(output.writer_policy_arns)) == toset(["orders", "team"]) && keys(output.reader_policy_arns) == keys(output.writer_policy_arns)
    error_message = "Each set of namespaces must have its policies."
  }

  assert {
    condition     = strcontains(aws_iam_policy.writer["orders"].policy, "\"dynamodb:LeadingKeys\":[\"orders/*\"]")
    error_message = "The policy of a query must be for its own namespace."
  }

  assert {
    condition     = !strcontains(aws_iam_policy.reader["team"].policy, "WriteItem")
    error_message = "Who reads must not write."
  }
}

run "the_key_is_used_through_dynamodb_only" {
  assert {
    condition = [
      for statement in jsondecode(aws_kms_key.state.policy).Statement : statement.Condition.StringEquals
      if statement.Principal.AWS == "*"
    ] == [{ "kms:CallerAccount" = "111122223333", "kms:ViaService" = ["dynamodb.us-east-1.amazonaws.com"] }]
    error_message = "Only the account, and only through DynamoDB, may use the key."
  }

  assert {
    condition     = aws_kms_key.state.enable_key_rotation
    error_message = "The key must be rotated."
  }

  assert {
    condition     = aws_kms_key.state.deletion_window_in_days == 30
    error_message = "The key must be kept as long as KMS can, for backups of deleted tables."
  }
}

run "refuses_what_is_no_region_names_that_cannot_be_limits_that_no_query_can_work_with_and_a_namespace_for_all" {
  command = plan

  variables {
    region                  = "Ireland"
    name                    = "streaming state"
    max_write_request_units = 999
    max_read_request_units  = 999
    namespaces              = { all = ["*"] }
    objects_bucket_name     = "Team_Blocks"
  }

  expect_failures = [
    var.region, var.name, var.max_write_request_units, var.max_read_request_units, var.namespaces, var.objects_bucket_name,
  ]
}

run "a_bucket_has_the_same_key_and_roles" {
  variables {
    objects_bucket_name = "team-objects"
  }

  override_resource {
    target = module.dynastate.aws_s3_bucket.objects
    values = { arn = "arn:aws:s3:::team-objects", id = "team-objects" }
  }

  assert {
    condition     = output.spark_conf["spark.sql.streaming.stateStore.dynastate.objects"] == "s3://team-objects"
    error_message = "spark_conf must name the bucket."
  }

  assert {
    condition = [
      for statement in jsondecode(aws_kms_key.state.policy).Statement : statement.Condition.StringEquals["kms:ViaService"]
      if statement.Principal.AWS == "*"
    ] == [["dynamodb.us-east-1.amazonaws.com", "s3.us-east-1.amazonaws.com"]]
    error_message = "Roles must be able to use the key through both services."
  }

  assert {
    condition = alltrue([
      for policy in values(merge(aws_iam_policy.writer, aws_iam_policy.reader)) : length(distinct(jsondecode(policy.policy).Statement[*].Sid)) == length(jsondecode(policy.policy).Statement)
    ])
    error_message = "IAM takes each Sid once in a policy."
  }

  assert {
    condition     = strcontains(aws_iam_policy.writer["orders"].policy, "arn:aws:s3:::team-objects/streaming-state-snapshot-group/orders/*") && strcontains(aws_iam_policy.writer["orders"].policy, "s3:PutObject") && strcontains(aws_iam_policy.writer["orders"].policy, "dynamodb:UpdateItem")
    error_message = "A writer must write its items and its objects."
  }

  assert {
    condition     = strcontains(aws_iam_policy.reader["team"].policy, "s3:GetObject") && !strcontains(aws_iam_policy.reader["team"].policy, "s3:PutObject")
    error_message = "Who reads must read objects, and not write them."
  }
}

run "names_of_policies_fit_into_iam" {
  command = plan

  variables {
    name       = join("", [for number in range(64) : "n"])
    namespaces = { (join("", [for number in range(56) : "s"])) = [join("", [for number in range(128) : "q"])] }
  }

  assert {
    condition = alltrue([
      for policy in concat(values(aws_iam_policy.writer), values(aws_iam_policy.reader)) : length(policy.name) <= 128
    ])
    error_message = "IAM takes names of up to 128 characters."
  }
}

run "refuses_a_name_of_namespaces_that_is_too_long" {
  command = plan

  variables {
    namespaces = { (join("", [for number in range(57) : "s"])) = ["orders"] }
  }

  expect_failures = [var.namespaces]
}
