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
    condition     = output.delta_table_name == "team-delta"
    error_message = "delta_table_name must be the delta table's name."
  }

  assert {
    condition     = output.delta_table_arn == "arn:aws:dynamodb:eu-west-1:111122223333:table/team-delta"
    error_message = "delta_table_arn must be the delta table's ARN."
  }

  assert {
    condition     = output.snapshot_group_table_name == "team-groups"
    error_message = "snapshot_group_table_name must be the snapshot-group table's name."
  }

  assert {
    condition     = output.snapshot_group_table_arn == "arn:aws:dynamodb:eu-west-1:111122223333:table/team-groups"
    error_message = "snapshot_group_table_arn must be the snapshot-group table's ARN."
  }

  assert {
    condition = output.spark_conf == {
      "spark.sql.streaming.stateStore.dynastate.deltaTable"    = "team-delta"
      "spark.sql.streaming.stateStore.dynastate.snapshotTable" = "team-groups"
    }
    error_message = "spark_conf must hold the two settings that name the tables."
  }
}
