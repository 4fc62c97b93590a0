# The bucket for objects in S3: none by default; private, encrypted, over TLS, and nothing in it expires.

mock_provider "aws" {}

override_resource {
  target = aws_dynamodb_table.state["delta"]
  values = { arn = "arn:aws:dynamodb:eu-west-1:111122223333:table/team-delta" }
}

override_resource {
  target = aws_s3_bucket.objects
  values = { arn = "arn:aws:s3:::team-objects", id = "team-objects" }
}

run "no_bucket_by_default" {
  assert {
    condition     = length(aws_s3_bucket.objects) == 0 && length(aws_s3_bucket_policy.objects) == 0
    error_message = "Without objects_bucket_name there must be no bucket."
  }

  assert {
    condition     = output.objects_writer_policies == {} && output.objects_reader_policies == {} && output.objects_eraser_policies == {} && output.objects_operator_policy == null && !contains(keys(output.spark_conf), "spark.sql.streaming.stateStore.dynastate.objects")
    error_message = "Without a bucket there must be no policies for it, and no setting."
  }
}

run "a_bucket" {
  variables {
    objects_bucket_name = "team-objects"
    objects_prefix      = "state"
    namespaces          = { orders = ["orders", "clicks"] }
  }

  assert {
    condition     = output.spark_conf["spark.sql.streaming.stateStore.dynastate.objects"] == "s3://team-objects/state"
    error_message = "spark_conf must have the setting objects."
  }

  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.objects[0].block_public_acls,
      aws_s3_bucket_public_access_block.objects[0].block_public_policy,
      aws_s3_bucket_public_access_block.objects[0].ignore_public_acls,
      aws_s3_bucket_public_access_block.objects[0].restrict_public_buckets,
    ])
    error_message = "Public access must be blocked."
  }

  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.objects[0].rule).apply_server_side_encryption_by_default).sse_algorithm == "AES256"
    error_message = "Without a key of their own, objects must be encrypted with that of S3."
  }

  assert {
    condition     = length(aws_s3_bucket_lifecycle_configuration.objects[0].rule) == 1 && one(aws_s3_bucket_versioning.objects[0].versioning_configuration).status == "Suspended"
    error_message = "Nothing but unfinished uploads may expire."
  }

  assert {
    condition     = jsondecode(aws_s3_bucket_policy.objects[0].policy).Statement[0].Effect == "Deny" && jsondecode(aws_s3_bucket_policy.objects[0].policy).Statement[0].Condition.Bool["aws:SecureTransport"] == "false"
    error_message = "Requests without TLS must be denied."
  }

  assert {
    condition     = jsondecode(output.objects_writer_policies["orders"]).Statement[0].Resource == ["arn:aws:s3:::team-objects/state/dynastate-snapshot-group/clicks/*", "arn:aws:s3:::team-objects/state/dynastate-snapshot-group/orders/*"]
    error_message = "Objects must be those of the namespaces."
  }

  assert {
    condition     = jsondecode(output.objects_reader_policies["orders"]).Statement[0].Action == "s3:GetObject"
    error_message = "A reader must not write."
  }

  assert {
    condition = alltrue([
      for statement in jsondecode(output.objects_operator_policy).Statement :
      statement.Resource == "arn:aws:s3:::team-objects" && !anytrue([for action in flatten([statement.Action]) : can(regex("Object$|Version$|[*]", action))])
    ])
    error_message = "The operator must reach the bucket and not its objects."
  }
}

run "a_key_and_old_versions" {
  variables {
    objects_bucket_name     = "team-objects"
    objects_noncurrent_days = 35
    kms_key_arn             = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
  }

  assert {
    condition     = output.spark_conf["spark.sql.streaming.stateStore.dynastate.objects"] == "s3://team-objects"
    error_message = "Without a prefix the setting must be the bucket."
  }

  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.objects[0].rule).apply_server_side_encryption_by_default).kms_master_key_id == var.kms_key_arn
    error_message = "The key of the tables must encrypt objects too."
  }

  assert {
    condition     = one(aws_s3_bucket_versioning.objects[0].versioning_configuration).status == "Enabled" && length(aws_s3_bucket_lifecycle_configuration.objects[0].rule) == 2
    error_message = "Old versions must be kept, and expire."
  }
}

run "a_wrong_name" {
  command = plan

  variables {
    objects_bucket_name = "Team_Blocks"
  }

  expect_failures = [var.objects_bucket_name]
}

run "a_wrong_prefix_and_no_day" {
  command = plan

  variables {
    objects_bucket_name     = "team-objects"
    objects_prefix          = "/state/"
    objects_noncurrent_days = 0
  }

  expect_failures = [var.objects_prefix, var.objects_noncurrent_days]
}

run "a_prefix_that_is_too_long" {
  command = plan

  variables {
    objects_bucket_name = "team-objects"
    objects_prefix      = join("", [for number in range(513) : "p"])
  }

  expect_failures = [var.objects_prefix]
}

run "settings_of_no_bucket" {
  command = plan

  variables {
    objects_prefix          = "state"
    objects_restored_from   = ["old-groups"]
    objects_noncurrent_days = 35
  }

  expect_failures = [var.objects_prefix, var.objects_restored_from, var.objects_noncurrent_days]
}

run "restored_tables_read_the_objects_of_the_old_ones" {
  variables {
    snapshot_group_table_name = "restored-groups"
    objects_bucket_name       = "team-objects"
    objects_restored_from     = ["old-groups"]
    namespaces                = { orders = ["orders", "clicks"] }
  }

  assert {
    condition = alltrue([
      for documents in [output.objects_writer_policies, output.objects_reader_policies] : alltrue([
        for statement in jsondecode(documents["orders"]).Statement :
        statement.Action == "s3:GetObject" && statement.Resource == ["arn:aws:s3:::team-objects/old-groups/clicks/*", "arn:aws:s3:::team-objects/old-groups/orders/*"]
        if strcontains(jsonencode(statement), "old-groups")
      ]) && strcontains(documents["orders"], "old-groups")
    ])
    error_message = "Objects of the old tables must be read, and not written or deleted."
  }

  assert {
    condition     = jsondecode(output.objects_writer_policies["orders"]).Statement[0].Resource == ["arn:aws:s3:::team-objects/restored-groups/clicks/*", "arn:aws:s3:::team-objects/restored-groups/orders/*"]
    error_message = "Objects must be written for the tables' own name."
  }
}

run "refuses_names_that_are_none_of_tables" {
  command = plan

  variables {
    objects_bucket_name   = "team-objects"
    objects_restored_from = ["old-groups", "*"]
  }

  expect_failures = [var.objects_restored_from]
}

# The policies of tables would take these.
run "refuses_more_namespaces_than_a_policy_of_objects_holds" {
  command = plan

  variables {
    objects_bucket_name = "team-objects"
    objects_prefix      = "state/of/streaming/queries"
    namespaces          = { team = [for number in range(60) : "namespace-${number}"] }
  }

  expect_failures = [output.objects_writer_policies]
}
