# The AWS provider knows warm throughput from 6.13 on, and this module takes older ones, too: so it is asked for with
# the AWS command line. It can only grow: DynamoDB has no request that takes it back, and what once was asked for is
# neither looked up again nor undone.
locals {
  warm = { for key in keys(local.tables) : key => var.warm_throughput[key] if var.warm_throughput[key] != null }
}

resource "terraform_data" "warm_throughput" {
  for_each = local.warm

  # A new table starts cold.
  triggers_replace = [aws_dynamodb_table.state[each.key].arn, each.value]

  provisioner "local-exec" {
    command = "aws dynamodb update-table --region \"$REGION\" --cli-input-json \"$REQUEST\""

    environment = {
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
