# Least-privilege policies: policies/ holds a template for each role, with placeholders for the tables' ARNs and the
# namespaces. tests/infra/test_policies.py compares them with the requests that the code sends.
locals {
  # Everything is in the tables' account and Region: of arn:aws:dynamodb:R:A:table/T, arn:aws:kms:R:A:key/* are the keys.
  table_arn = "/:dynamodb:([^:]*):([^:]*):table/(.*)$/"
  any_arn   = aws_dynamodb_table.state["delta"].arn

  arns = merge(
    { for key, table in aws_dynamodb_table.state : "${key}_table_arn" => table.arn },
    { for key, table in aws_dynamodb_table.state : "${key}_alarms_arn" => replace(table.arn, local.table_arn, ":cloudwatch:$1:$2:alarm:$3-*") },
    { for key, table in aws_dynamodb_table.state : "${key}_scaling_alarms_arn" => replace(table.arn, local.table_arn, ":cloudwatch:$1:$2:alarm:TargetTracking-table/$3-*") },
    {
      keys_arn             = replace(local.any_arn, local.table_arn, ":kms:$1:$2:key/*")
      scalable_targets_arn = replace(local.any_arn, local.table_arn, ":application-autoscaling:$1:$2:scalable-target/*")
      scaling_role_arn     = replace(local.any_arn, local.table_arn, ":iam::$2:role/aws-service-role/dynamodb.application-autoscaling.amazonaws.com/AWSServiceRoleForApplicationAutoScaling_DynamoDBTable")
    },
  )

  # Decoding and encoding finds invalid JSON here and removes blanks.
  namespaced_policies = {
    for role in ["writer", "reader", "eraser"] : role => {
      for name, namespaces in var.namespaces : name => jsonencode(jsondecode(templatefile(
        "${path.module}/policies/${role}.json.tftpl",
        merge(local.arns, { leading_keys = jsonencode([for namespace in namespaces : "${namespace}/*"]) }),
      )))
    }
  }
  operator_policy = jsonencode(jsondecode(templatefile("${path.module}/policies/operator.json.tftpl", local.arns)))
}
