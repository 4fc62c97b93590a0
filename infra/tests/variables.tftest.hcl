# What the module refuses, and the edges of what it takes. Each plan takes a second, so a run has several variables that
# are wrong, of which none is validated by another one.

mock_provider "aws" {}

run "accepts_the_shortest_and_the_longest_name_and_a_key_of_another_aws_partition" {
  command = plan

  variables {
    delta_table_name          = "a.b"
    snapshot_group_table_name = join("", [for i in range(255) : "a"])
    kms_key_arn               = "arn:aws-us-gov:kms:us-gov-west-1:111122223333:key/mrk-1234abcd12ab34cd56ef1234567890ab"
  }
}

run "refuses_delta_name_too_short_and_replica_in_what_is_no_region" {
  command = plan

  variables {
    delta_table_name = "ab"
    stream_enabled   = true
    replicas         = { frankfurt = {} }
  }

  expect_failures = [var.delta_table_name, var.replicas]
}

run "refuses_delta_name_too_long_and_replica_without_a_key_of_its_own" {
  command = plan

  variables {
    delta_table_name = join("", [for i in range(256) : "a"])
    kms_key_arn      = "arn:aws:kms:eu-west-1:111122223333:key/mrk-1"
    stream_enabled   = true
    replicas         = { eu-central-1 = {} }
  }

  expect_failures = [var.delta_table_name, var.replicas]
}

run "refuses_delta_name_with_a_character_outside_the_set_and_replica_with_a_key_of_another_region" {
  command = plan

  variables {
    delta_table_name = "dynastate/delta"
    kms_key_arn      = "arn:aws:kms:eu-west-1:111122223333:key/mrk-1"
    stream_enabled   = true
    replicas         = { eu-central-1 = { kms_key_arn = "arn:aws:kms:eu-west-1:111122223333:key/mrk-1" } }
  }

  expect_failures = [var.delta_table_name, var.replicas]
}

run "refuses_snapshot_group_name_too_short_kms_alias_reserved_tag_key_and_unknown_table_class" {
  command = plan

  variables {
    snapshot_group_table_name = "ab"
    kms_key_arn               = "arn:aws:kms:eu-west-1:111122223333:alias/state"
    tags                      = { "aws:team" = "one" }
    table_class               = "GLACIER"
  }

  expect_failures = [var.snapshot_group_table_name, var.kms_key_arn, var.tags, var.table_class]
}

run "refuses_snapshot_group_name_too_long_kms_bare_id_and_tag_value_too_long" {
  command = plan

  variables {
    snapshot_group_table_name = join("", [for i in range(256) : "a"])
    kms_key_arn               = "1234abcd-12ab-34cd-56ef-1234567890ab"
    tags                      = { team = join("", [for i in range(257) : "a"]) }
  }

  expect_failures = [var.snapshot_group_table_name, var.kms_key_arn, var.tags]
}

run "refuses_snapshot_group_name_with_a_character_outside_the_set_arn_of_another_service_and_too_many_tags" {
  command = plan

  variables {
    snapshot_group_table_name = "dynastate groups"
    kms_key_arn               = "arn:aws:s3:::bucket"
    tags                      = { for i in range(51) : "tag${i}" => "" }
  }

  expect_failures = [var.snapshot_group_table_name, var.kms_key_arn, var.tags]
}

run "refuses_equal_names" {
  command = plan

  variables {
    delta_table_name          = "dynastate"
    snapshot_group_table_name = "dynastate"
  }

  expect_failures = [var.snapshot_group_table_name]
}

run "refuses_replica_with_a_key_where_the_tables_have_none" {
  command = plan

  variables {
    stream_enabled = true
    replicas       = { eu-central-1 = { kms_key_arn = "arn:aws:kms:eu-central-1:111122223333:key/mrk-1" } }
  }

  expect_failures = [var.replicas]
}

run "refuses_replicas_of_provisioned_tables" {
  command = plan

  variables {
    provisioned_capacity = {
      delta = {
        read  = { min = 1, max = 1 }
        write = { min = 1, max = 1 }
      }
      snapshot_group = {
        read  = { min = 1, max = 1 }
        write = { min = 1, max = 1 }
      }
    }
    stream_enabled = true
    replicas       = { eu-central-1 = {} }
  }

  expect_failures = [var.replicas]
}

run "refuses_replicas_without_a_stream" {
  command = plan

  variables {
    replicas = { eu-central-1 = {} }
  }

  expect_failures = [var.replicas]
}
