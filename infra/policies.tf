# What each role may do, and no more: policies/ holds one document for each, with holes for the tables' ARNs and the
# namespace. tests/infra/test_policies.py compares them with the requests that the code sends.
locals {
  arns = {
    delta_table_arn          = aws_dynamodb_table.state["delta"].arn
    snapshot_group_table_arn = aws_dynamodb_table.state["snapshot_group"].arn
    # The keys of the tables' account and Region: arn:aws:dynamodb:R:A:table/T gives arn:aws:kms:R:A:key/*.
    keys_arn = replace(aws_dynamodb_table.state["delta"].arn, "/:dynamodb:(.*):table/.*$/", ":kms:$1:key/*")
  }

  # Decoded and encoded again, so that what is no JSON is found here, and the documents come without blanks.
  namespaced_policies = {
    for role in ["writer", "reader"] : role => {
      for namespace in var.namespaces :
      namespace => jsonencode(jsondecode(templatefile(
        "${path.module}/policies/${role}.json.tftpl", merge(local.arns, { namespace = namespace })
      )))
    }
  }
  operator_policy = jsonencode(jsondecode(templatefile("${path.module}/policies/operator.json.tftpl", local.arns)))
}
