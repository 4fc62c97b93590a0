# Readers in other accounts, if cross_account_readers is set: each table, and the bucket, gets a policy of its own that
# allows them what the reader's policy allows. AWS asks both: their account has to allow it, too.
locals {
  cross_account = {
    for policies, documents in { tables = local.namespaced_policies["reader"], objects = local.objects_policies["reader"] } : policies => flatten([
      for name, principals in var.cross_account_readers : [
        for statement in jsondecode(documents[name]).Statement : merge(statement, {
          Sid       = "${statement.Sid}${index(keys(var.cross_account_readers), name)}"
          Principal = { AWS = sort(principals) }
        })
      ] if contains(keys(documents), name)
    ])
  }
}

resource "aws_dynamodb_resource_policy" "readers" {
  for_each = { for key, table in aws_dynamodb_table.state : key => table.arn if length(var.cross_account_readers) > 0 }

  resource_arn = each.value
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [for statement in local.cross_account["tables"] : merge(statement, { Resource = each.value })]
  })

  # The policy of the AWS managed key allows the tables' own account only.
  lifecycle {
    precondition {
      condition     = var.kms_key_arn != null
      error_message = "cross_account_readers needs kms_key_arn: the AWS managed key of DynamoDB can be used in its own account only."
    }
  }
}
