# Autoscaling for tables in provisioned mode. Its bounds hold from the first apply on: it moves a capacity outside of
# them inside, so a change of min or max needs no other step.
locals {
  scaled = var.provisioned_capacity == null ? {} : {
    for pair in setproduct(keys(local.tables), ["read", "write"]) : "${pair[0]}/${pair[1]}" => {
      table     = pair[0]
      direction = pair[1]
      units     = var.provisioned_capacity[pair[0]][pair[1]]
    }
  }

  # As DynamoDB spells the two: dynamodb:table:ReadCapacityUnits, DynamoDBReadCapacityUtilization.
  spelled = { read = "Read", write = "Write" }
}

resource "aws_appautoscaling_target" "capacity" {
  for_each = local.scaled

  service_namespace  = "dynamodb"
  resource_id        = "table/${aws_dynamodb_table.state[each.value.table].name}"
  scalable_dimension = "dynamodb:table:${local.spelled[each.value.direction]}CapacityUnits"
  min_capacity       = each.value.units.min
  max_capacity       = each.value.units.max
  tags               = var.tags
}

resource "aws_appautoscaling_policy" "capacity" {
  for_each = local.scaled

  name               = "${aws_dynamodb_table.state[each.value.table].name}-${each.value.direction}"
  policy_type        = "TargetTrackingScaling"
  service_namespace  = aws_appautoscaling_target.capacity[each.key].service_namespace
  resource_id        = aws_appautoscaling_target.capacity[each.key].resource_id
  scalable_dimension = aws_appautoscaling_target.capacity[each.key].scalable_dimension

  target_tracking_scaling_policy_configuration {
    target_value = var.provisioned_capacity.target_utilization_percent

    predefined_metric_specification {
      predefined_metric_type = "DynamoDB${local.spelled[each.value.direction]}CapacityUtilization"
    }
  }
}
