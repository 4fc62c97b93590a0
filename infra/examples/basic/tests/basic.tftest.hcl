# What the example gives, without AWS: the provider is mocked, only its schema is real.

mock_provider "aws" {}

run "it_points_spark_at_the_tables" {
  assert {
    condition = output.spark_conf == {
      "spark.sql.streaming.stateStore.dynastate.deltaTable"    = "dynastate-delta"
      "spark.sql.streaming.stateStore.dynastate.snapshotTable" = "dynastate-snapshot-group"
    }
    error_message = "spark_conf must name both tables."
  }
}

run "refuses_what_is_no_region" {
  command = plan

  variables {
    region = "Ireland"
  }

  expect_failures = [var.region]
}
