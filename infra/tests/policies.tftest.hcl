# The policies: one for each namespace, for these tables and no others. What they allow is compared with what the code
# does in tests/infra/test_policies.py.

mock_provider "aws" {}

override_resource {
  target = aws_dynamodb_table.state["delta"]
  values = { arn = "arn:aws-cn:dynamodb:cn-north-1:111122223333:table/team-delta" }
}

override_resource {
  target = aws_dynamodb_table.state["snapshot_group"]
  values = { arn = "arn:aws-cn:dynamodb:cn-north-1:111122223333:table/team-groups" }
}

run "all_namespaces_by_default" {
  assert {
    condition     = toset(keys(output.writer_policies)) == toset(["all"]) && toset(keys(output.reader_policies)) == toset(["all"])
    error_message = "Without namespaces there must be one policy, for all of them."
  }

  assert {
    condition     = strcontains(output.writer_policies["all"], "\"dynamodb:LeadingKeys\":[\"*/*\"]")
    error_message = "The policy for all namespaces must allow every store's name."
  }
}

run "a_policy_for_each_set_of_namespaces" {
  variables {
    namespaces = { orders = ["orders"], team = ["clicks-2.eu_west", "visits"] }
  }

  assert {
    condition = alltrue([
      for policies in [output.writer_policies, output.reader_policies, output.eraser_policies] :
      toset(keys(policies)) == toset(["orders", "team"])
    ])
    error_message = "Each set of namespaces must have its policies."
  }

  # A statement on items has a condition; the one on the tables as such has none, for there are no keys to look at.
  assert {
    condition = alltrue([
      for policies in [output.writer_policies, output.reader_policies, output.eraser_policies] : alltrue([
        for name, document in policies : alltrue([
          for statement in jsondecode(document).Statement : jsonencode(try(statement.Condition, {})) == jsonencode({
            "ForAllValues:StringLike" = { "dynamodb:LeadingKeys" = name == "orders" ? ["orders/*"] : ["clicks-2.eu_west/*", "visits/*"] }
            Null                      = { "dynamodb:LeadingKeys" = "false" }
          }) if statement.Sid != "Tables"
        ])
      ])
    ])
    error_message = "Items must be those of the namespaces, and requests must have keys."
  }

  assert {
    condition = alltrue([
      for document in concat(values(output.writer_policies), values(output.reader_policies), values(output.eraser_policies)) : alltrue([
        for statement in jsondecode(document).Statement : alltrue([
          for arn in flatten([statement.Resource]) : contains([
            "arn:aws-cn:dynamodb:cn-north-1:111122223333:table/team-delta",
            "arn:aws-cn:dynamodb:cn-north-1:111122223333:table/team-groups",
          ], arn)
        ])
      ])
    ])
    error_message = "Policies must be for the two tables and no other."
  }
}

run "operator" {
  assert {
    condition = alltrue([
      for statement in jsondecode(output.operator_policy).Statement :
      !anytrue([for action in flatten([statement.Action]) : can(regex("Item|Query|Scan|PartiQL|[*]", action))])
    ])
    error_message = "The operator must not reach what is in the tables."
  }

  assert {
    condition     = jsondecode(output.operator_policy).Statement[1].Resource == "arn:aws-cn:kms:cn-north-1:111122223333:key/*"
    error_message = "Keys must be those of the tables' account and Region."
  }

  assert {
    condition = toset(flatten([
      for statement in jsondecode(output.operator_policy).Statement : statement.Resource if contains(["Alarms", "Scaling", "ScalingAlarms", "ScalingRole"], statement.Sid)
      ])) == toset([
      "arn:aws-cn:cloudwatch:cn-north-1:111122223333:alarm:team-delta-*",
      "arn:aws-cn:cloudwatch:cn-north-1:111122223333:alarm:team-groups-*",
      "arn:aws-cn:cloudwatch:cn-north-1:111122223333:alarm:TargetTracking-table/team-delta-*",
      "arn:aws-cn:cloudwatch:cn-north-1:111122223333:alarm:TargetTracking-table/team-groups-*",
      "arn:aws-cn:application-autoscaling:cn-north-1:111122223333:scalable-target/*",
      "arn:aws-cn:iam::111122223333:role/aws-service-role/dynamodb.application-autoscaling.amazonaws.com/AWSServiceRoleForApplicationAutoScaling_DynamoDBTable",
    ])
    error_message = "Alarms and autoscaling must be those of the two tables."
  }
}

run "refuses_more_namespaces_than_a_policy_holds" {
  command = plan

  variables {
    namespaces = { team = [for number in range(300) : "namespace-${number}"] }
  }

  expect_failures = [output.writer_policies]
}
