# Capacity: on demand, with limits; provisioned, moved by autoscaling; warmed in advance.

mock_provider "aws" {
  mock_resource "aws_dynamodb_table" {
    defaults = { arn = "arn:aws:dynamodb:eu-west-1:111122223333:table/any" }
  }
}

variables {
  provisioned = {
    delta = {
      read  = { min = 10, max = 100 }
      write = { min = 500, max = 5000 }
    }
    snapshot_group = {
      read  = { min = 20, max = 200 }
      write = { min = 600, max = 6000 }
    }
  }
}

run "on_demand_without_limits_by_default" {
  command = plan

  assert {
    condition = alltrue([
      for table in aws_dynamodb_table.state : table.billing_mode == "PAY_PER_REQUEST" && length(table.on_demand_throughput) == 0
    ])
    error_message = "Both tables must be on demand, and limited by the account's quota only."
  }

  assert {
    condition     = length(aws_appautoscaling_target.capacity) + length(aws_appautoscaling_policy.capacity) + length(terraform_data.warm_throughput) == 0
    error_message = "Tables on demand need no autoscaling, and are not warmed unless asked for."
  }
}

run "limits_on_demand" {
  command = plan

  variables {
    on_demand_throughput = {
      delta          = { max_read_request_units = 2000, max_write_request_units = 1000 }
      snapshot_group = { max_write_request_units = -1 }
    }
  }

  assert {
    condition = (
      aws_dynamodb_table.state["delta"].on_demand_throughput[0].max_read_request_units == 2000 &&
      aws_dynamodb_table.state["delta"].on_demand_throughput[0].max_write_request_units == 1000
    )
    error_message = "The delta table must have its limits."
  }

  assert {
    condition     = aws_dynamodb_table.state["snapshot_group"].on_demand_throughput[0].max_write_request_units == -1
    error_message = "The snapshot-group table must lose the limit it may have."
  }
}

run "provisioned" {
  command = plan

  variables {
    provisioned_capacity = var.provisioned
  }

  assert {
    condition = [for table in aws_dynamodb_table.state : [table.billing_mode, table.read_capacity, table.write_capacity]] == [
      ["PROVISIONED", 10, 500], ["PROVISIONED", 20, 600]
    ]
    error_message = "Both tables must begin with the least of their capacity."
  }

  assert {
    condition = {
      for target in aws_appautoscaling_target.capacity :
      "${target.resource_id} ${target.scalable_dimension}" => [target.min_capacity, target.max_capacity]
      } == {
      "table/dynastate-delta dynamodb:table:ReadCapacityUnits"           = [10, 100]
      "table/dynastate-delta dynamodb:table:WriteCapacityUnits"          = [500, 5000]
      "table/dynastate-snapshot-group dynamodb:table:ReadCapacityUnits"  = [20, 200]
      "table/dynastate-snapshot-group dynamodb:table:WriteCapacityUnits" = [600, 6000]
    }
    error_message = "Reads and writes of each table must move between their bounds."
  }

  assert {
    condition = {
      for policy in aws_appautoscaling_policy.capacity : "${policy.resource_id} ${policy.scalable_dimension}" => [
        for tracked in policy.target_tracking_scaling_policy_configuration :
        [tracked.target_value, tracked.predefined_metric_specification[0].predefined_metric_type]
      ]
      } == {
      "table/dynastate-delta dynamodb:table:ReadCapacityUnits"           = [[70, "DynamoDBReadCapacityUtilization"]]
      "table/dynastate-delta dynamodb:table:WriteCapacityUnits"          = [[70, "DynamoDBWriteCapacityUtilization"]]
      "table/dynastate-snapshot-group dynamodb:table:ReadCapacityUnits"  = [[70, "DynamoDBReadCapacityUtilization"]]
      "table/dynastate-snapshot-group dynamodb:table:WriteCapacityUnits" = [[70, "DynamoDBWriteCapacityUtilization"]]
    }
    error_message = "Each capacity must follow its own use."
  }
}

# What autoscaling does is simulated: a table that is there has another capacity than the configuration says.
run "what_autoscaling_chose_is_kept_made" {
  variables {
    provisioned_capacity = var.provisioned
  }
}

run "what_autoscaling_chose_is_kept" {
  command = plan

  variables {
    provisioned_capacity = merge(var.provisioned, {
      delta = {
        read  = { min = 50, max = 100 }
        write = { min = 900, max = 5000 }
      }
    })
  }

  assert {
    condition = (
      aws_dynamodb_table.state["delta"].read_capacity == 10 &&
      aws_dynamodb_table.state["delta"].write_capacity == 500
    )
    error_message = "Terraform must leave the capacity of a table that is there to autoscaling."
  }

  assert {
    condition     = aws_appautoscaling_target.capacity["delta/write"].min_capacity == 900
    error_message = "A new bound must reach autoscaling."
  }
}

run "warmed" {
  command = plan

  variables {
    warm_throughput = { delta = { read_units_per_second = 20000, write_units_per_second = 10000 } }
  }

  assert {
    condition     = keys(terraform_data.warm_throughput) == ["delta"]
    error_message = "The delta table must be warmed, and no other."
  }
}

run "refuses_min_above_max" {
  command = plan

  variables {
    provisioned_capacity = merge(var.provisioned, {
      delta = {
        read  = { min = 10, max = 9 }
        write = { min = 500, max = 5000 }
      }
    })
  }

  expect_failures = [var.provisioned_capacity]
}

run "refuses_capacity_of_nothing" {
  command = plan

  variables {
    provisioned_capacity = merge(var.provisioned, {
      snapshot_group = {
        read  = { min = 0, max = 9 }
        write = { min = 500, max = 5000 }
      }
    })
  }

  expect_failures = [var.provisioned_capacity]
}

run "refuses_utilization_that_dynamodb_does_not_take" {
  command = plan

  variables {
    provisioned_capacity = merge(var.provisioned, { target_utilization_percent = 95 })
  }

  expect_failures = [var.provisioned_capacity]
}

run "refuses_limit_of_nothing" {
  command = plan

  variables {
    on_demand_throughput = { delta = { max_write_request_units = 0 } }
  }

  expect_failures = [var.on_demand_throughput]
}

run "refuses_limits_on_demand_of_provisioned_tables" {
  command = plan

  variables {
    provisioned_capacity = var.provisioned
    on_demand_throughput = { delta = { max_write_request_units = 1000 } }
  }

  expect_failures = [var.on_demand_throughput]
}

run "refuses_to_warm_to_less_than_there_is" {
  command = plan

  variables {
    warm_throughput = { delta = { read_units_per_second = 12000, write_units_per_second = 3999 } }
  }

  expect_failures = [var.warm_throughput]
}

run "refuses_to_warm_by_a_fraction" {
  command = plan

  variables {
    warm_throughput = { snapshot_group = { read_units_per_second = 12000.5, write_units_per_second = 4000 } }
  }

  expect_failures = [var.warm_throughput]
}
