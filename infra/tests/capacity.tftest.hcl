# Capacity: on demand, with limits; provisioned, moved by autoscaling; warmed in advance.

mock_provider "aws" {
  mock_resource "aws_dynamodb_table" {
    defaults = { arn = "arn:aws:dynamodb:eu-west-1:111122223333:table/any" }
  }
}

variables {
  provisioned = {
    delta          = { read = { min = 10, max = 100 }, write = { min = 500, max = 5000 } }
    snapshot_group = { read = { min = 20, max = 200 }, write = { min = 600, max = 6000 } }
  }
}

run "limits_on_demand_and_warmth" {
  command = plan

  variables {
    on_demand_throughput = {
      delta          = { max_read_request_units = 2000, max_write_request_units = 1000 }
      snapshot_group = { max_write_request_units = -1 }
    }
    warm_throughput = { delta = { read_units_per_second = 20000, write_units_per_second = 10000 } }
  }

  assert {
    condition = (
      aws_dynamodb_table.state["delta"].on_demand_throughput[0].max_read_request_units == 2000 &&
      aws_dynamodb_table.state["delta"].on_demand_throughput[0].max_write_request_units == 1000 &&
      aws_dynamodb_table.state["snapshot_group"].on_demand_throughput[0].max_write_request_units == -1
    )
    error_message = "The delta table must have its limits, and the snapshot-group table lose the one it may have."
  }

  assert {
    condition     = keys(terraform_data.warm_throughput) == ["delta"]
    error_message = "The delta table must be warmed, and no other."
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
      delta = { read = { min = 50, max = 100 }, write = { min = 900, max = 5000 } }
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
