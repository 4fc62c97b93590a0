# What the example gives, without AWS: the provider is mocked, only its schema is real.

mock_provider "aws" {
  mock_resource "aws_dynamodb_table" {
    defaults = { arn = "arn:aws:dynamodb:us-east-1:111122223333:table/any" }
  }
}

variables {
  namespaces = { orders = ["orders"] }
}

run "two_replicas_and_a_witness" {
  assert {
    condition = alltrue([
      for table in values(aws_dynamodb_table.state) : table.replica[*].region_name == tolist(["us-east-2"]) && table.deletion_protection_enabled
    ])
    error_message = "Each table must have a replica in the second Region, and be protected."
  }

  assert {
    condition     = { for key, table in aws_dynamodb_table.state : table.name => [table.hash_key, table.range_key] } == { "streaming-state-delta" = ["store_shard", "part"], "streaming-state-snapshot-group" = ["store_shard", "entry"] }
    error_message = "The tables must have the keys of the package."
  }

  assert {
    condition     = { for region, conf in output.spark_conf : region => conf["spark.sql.streaming.stateStore.dynastate.region"] } == { "us-east-1" = "us-east-1", "us-east-2" = "us-east-2" }
    error_message = "There must be a conf for each Region in which a query can run."
  }

  assert {
    condition     = strcontains(output.writer_policies["orders"]["us-east-2"], "arn:aws:dynamodb:us-east-2:111122223333:table/any") && strcontains(output.writer_policies["orders"]["us-east-2"], "\"dynamodb:LeadingKeys\":[\"orders/*\"]")
    error_message = "The policy for a Region must be for the tables there, and for the query's own namespace."
  }
}

run "three_replicas" {
  variables {
    third_is_witness = false
  }

  assert {
    condition     = alltrue([for table in values(aws_dynamodb_table.state) : toset(table.replica[*].region_name) == toset(["us-east-2", "us-west-2"])])
    error_message = "Each table must have a replica in both other Regions."
  }

  assert {
    condition     = length(output.spark_conf) == 3
    error_message = "There must be a conf for each Region in which a query can run."
  }
}

run "refuses_regions_of_two_sets" {
  command = plan

  variables {
    second_region = "eu-west-1"
  }

  expect_failures = [var.third_region]
}

run "refuses_a_region_twice" {
  command = plan

  variables {
    second_region = "us-east-1"
  }

  expect_failures = [var.third_region]
}

run "refuses_names_and_namespaces_that_cannot_be" {
  command = plan

  variables {
    name       = "streaming state"
    namespaces = { all = ["*"] }
  }

  expect_failures = [var.name, var.namespaces]
}
