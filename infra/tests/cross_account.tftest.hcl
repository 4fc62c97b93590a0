# Readers in other accounts: they may do what the reader's policy says, on the table or bucket that the policy is of.

mock_provider "aws" {}

override_resource {
  target = aws_dynamodb_table.state["delta"]
  values = { arn = "arn:aws:dynamodb:eu-west-1:111122223333:table/team-delta" }
}

override_resource {
  target = aws_dynamodb_table.state["snapshot_group"]
  values = { arn = "arn:aws:dynamodb:eu-west-1:111122223333:table/team-groups" }
}

override_resource {
  target = aws_s3_bucket.objects[0]
  values = { arn = "arn:aws:s3:::team-objects" }
}

variables {
  namespaces  = { orders = ["orders"], web = ["clicks", "visits"] }
  kms_key_arn = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
}

run "none_by_default" {
  assert {
    condition     = length(aws_dynamodb_resource_policy.readers) == 0
    error_message = "Without readers in other accounts the tables must have no policy."
  }
}

run "each_reads_its_namespaces" {
  variables {
    cross_account_readers = { orders = ["444455556666"], web = ["arn:aws:iam::444455556666:role/b", "arn:aws:iam::444455556666:role/a"] }
    objects_bucket_name   = "team-objects"
  }

  assert {
    condition     = toset(keys(aws_dynamodb_resource_policy.readers)) == toset(["delta", "snapshot_group"])
    error_message = "Both tables must have a policy."
  }

  # A statement is the reader's, for a principal, on one table.
  assert {
    condition = alltrue([
      for key, table in aws_dynamodb_resource_policy.readers : jsonencode([
        for statement in jsondecode(table.policy).Statement : [statement.Effect, statement.Action, try(statement.Condition, null), statement.Principal.AWS, statement.Resource]
        ]) == jsonencode(concat([
          for statement in jsondecode(output.reader_policies["orders"]).Statement :
          [statement.Effect, statement.Action, try(statement.Condition, null), ["444455556666"], table.resource_arn]
          ], [
          for statement in jsondecode(output.reader_policies["web"]).Statement :
          [statement.Effect, statement.Action, try(statement.Condition, null), ["arn:aws:iam::444455556666:role/a", "arn:aws:iam::444455556666:role/b"], table.resource_arn]
      ]))
    ])
    error_message = "Principals must be allowed what the reader's policy of their namespaces allows."
  }

  assert {
    condition = alltrue([
      for table in aws_dynamodb_resource_policy.readers :
      length(distinct([for statement in jsondecode(table.policy).Statement : statement.Sid])) == length(jsondecode(table.policy).Statement)
    ])
    error_message = "Statements must have names of their own."
  }

  assert {
    condition = jsonencode([
      for statement in jsondecode(aws_s3_bucket_policy.objects[0].policy).Statement : [statement.Action, statement.Resource] if contains(try(statement.Principal.AWS, []), "444455556666")
      ]) == jsonencode([
      for statement in jsondecode(output.objects_reader_policies["orders"]).Statement : [statement.Action, statement.Resource]
    ])
    error_message = "The bucket must allow what the reader's policy of the bucket allows."
  }

  assert {
    condition     = jsondecode(aws_s3_bucket_policy.objects[0].policy).Statement[0].Effect == "Deny"
    error_message = "The bucket must still deny requests without TLS."
  }
}

run "everyone_is_refused" {
  command = plan

  variables {
    cross_account_readers = { orders = ["*"] }
  }

  expect_failures = [var.cross_account_readers]
}

run "an_unknown_name_is_refused" {
  command = plan

  variables {
    cross_account_readers = { sales = ["444455556666"] }
  }

  expect_failures = [var.cross_account_readers]
}

run "a_name_without_principals_is_refused" {
  command = plan

  variables {
    cross_account_readers = { orders = [] }
  }

  expect_failures = [var.cross_account_readers]
}

run "the_managed_key_is_refused" {
  command = plan

  variables {
    cross_account_readers = { orders = ["444455556666"] }
    kms_key_arn           = null
  }

  expect_failures = [aws_dynamodb_resource_policy.readers]
}
