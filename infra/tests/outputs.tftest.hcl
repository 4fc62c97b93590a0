# What a caller gets. ARNs exist only after an apply; the mocked provider applies without AWS.

mock_provider "aws" {}

override_resource {
  target = aws_dynamodb_table.state["delta"]
  values = { arn = "arn:aws:dynamodb:eu-west-1:111122223333:table/team-delta" }
}

override_resource {
  target = aws_dynamodb_table.state["snapshot_group"]
  values = { arn = "arn:aws:dynamodb:eu-west-1:111122223333:table/team-groups" }
}

variables {
  delta_table_name          = "team-delta"
  snapshot_group_table_name = "team-groups"
}

run "outputs" {
  assert {
    condition = {
      delta_table_name          = output.delta_table_name
      delta_table_arn           = output.delta_table_arn
      snapshot_group_table_name = output.snapshot_group_table_name
      snapshot_group_table_arn  = output.snapshot_group_table_arn
      } == {
      delta_table_name          = "team-delta"
      delta_table_arn           = "arn:aws:dynamodb:eu-west-1:111122223333:table/team-delta"
      snapshot_group_table_name = "team-groups"
      snapshot_group_table_arn  = "arn:aws:dynamodb:eu-west-1:111122223333:table/team-groups"
    }
    error_message = "Names and ARNs must be those of the tables."
  }

  assert {
    condition = output.spark_conf == {
      "spark.sql.streaming.stateStore.dynastate.deltaTable"    = "team-delta"
      "spark.sql.streaming.stateStore.dynastate.snapshotTable" = "team-groups"
    }
    error_message = "spark_conf must hold the two settings that name the tables."
  }
}
