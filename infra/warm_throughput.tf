# The AWS provider supports warm throughput from 6.13 on, and this module supports older providers too: so the AWS
# command line sets it. Warm throughput can only grow: DynamoDB has no request that lowers it, and Terraform neither
# reads it back nor undoes it.
locals {
  warm = { for key in keys(local.tables) : key => var.warm_throughput[key] if var.warm_throughput[key] != null }
}

resource "terraform_data" "warm_throughput" {
  for_each = local.warm

  # A new table starts cold.
  triggers_replace = [aws_dynamodb_table.state[each.key].arn, each.value]

  provisioner "local-exec" {
    # DynamoDB refuses every other change of a table that is being updated.
    command = "aws dynamodb update-table --region \"$REGION\" --cli-input-json \"$REQUEST\" && aws dynamodb wait table-exists --region \"$REGION\" --table-name \"$TABLE\""

    environment = {
      TABLE  = aws_dynamodb_table.state[each.key].name
      REGION = split(":", aws_dynamodb_table.state[each.key].arn)[3]
      REQUEST = jsonencode({
        TableName = aws_dynamodb_table.state[each.key].name
        WarmThroughput = {
          ReadUnitsPerSecond  = each.value.read_units_per_second
          WriteUnitsPerSecond = each.value.write_units_per_second
        }
      })
    }
  }
}
