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

run "refuses_too_little_or_what_is_no_region_arn_or_namespace" {
  command = plan

  variables {
    delta_table_name     = "ab"
    stream_enabled       = true
    replicas             = { frankfurt = {} }
    on_demand_throughput = { delta = { max_write_request_units = 0 } }
    warm_throughput      = { delta = { read_units_per_second = 12000, write_units_per_second = 3999 } }
    alarms               = { actions = ["pager"] }
    namespaces           = { team = ["team-*"] }
  }

  expect_failures = [
    var.delta_table_name, var.replicas, var.on_demand_throughput, var.warm_throughput, var.alarms, var.namespaces,
  ]
}

run "refuses_too_much_a_fraction_a_slash_or_a_replica_without_a_key_of_its_own" {
  command = plan

  variables {
    delta_table_name = join("", [for i in range(256) : "a"])
    kms_key_arn      = "arn:aws:kms:eu-west-1:111122223333:key/mrk-1"
    stream_enabled   = true
    replicas         = { eu-central-1 = {} }
    warm_throughput  = { snapshot_group = { read_units_per_second = 12000.5, write_units_per_second = 4000 } }
    alarms           = { actions = [for i in range(6) : "arn:aws:sns:eu-west-1:111122223333:pager${i}"] }
    namespaces       = { team = ["team/orders"] }
  }

  expect_failures = [var.delta_table_name, var.replicas, var.warm_throughput, var.alarms, var.namespaces]
}

run "refuses_a_character_outside_the_set_a_negative_threshold_an_empty_namespace_or_a_replica_with_a_key_of_another_region" {
  command = plan

  variables {
    delta_table_name = "dynastate/delta"
    kms_key_arn      = "arn:aws:kms:eu-west-1:111122223333:key/mrk-1"
    stream_enabled   = true
    replicas         = { eu-central-1 = { kms_key_arn = "arn:aws:kms:eu-west-1:111122223333:key/mrk-1" } }
    alarms           = { throttle_events = -1 }
    namespaces       = { team = [""] }
  }

  expect_failures = [var.delta_table_name, var.replicas, var.alarms, var.namespaces]
}

run "refuses_snapshot_group_name_too_short_kms_alias_reserved_tag_key_unknown_table_class_min_above_max_or_no_namespaces" {
  command = plan

  variables {
    snapshot_group_table_name = "ab"
    kms_key_arn               = "arn:aws:kms:eu-west-1:111122223333:alias/state"
    tags                      = { "aws:team" = "one" }
    table_class               = "GLACIER"
    namespaces                = { team = [] }
    provisioned_capacity = {
      delta          = { read = { min = 10, max = 9 }, write = { min = 500, max = 5000 } }
      snapshot_group = { read = { min = 20, max = 200 }, write = { min = 600, max = 6000 } }
    }
  }

  expect_failures = [
    var.snapshot_group_table_name, var.kms_key_arn, var.tags, var.table_class, var.namespaces, var.provisioned_capacity,
  ]
}

run "refuses_snapshot_group_name_too_long_kms_bare_id_tag_value_too_long_or_capacity_of_nothing" {
  command = plan

  variables {
    snapshot_group_table_name = join("", [for i in range(256) : "a"])
    kms_key_arn               = "1234abcd-12ab-34cd-56ef-1234567890ab"
    tags                      = { team = join("", [for i in range(257) : "a"]) }
    provisioned_capacity = {
      delta          = { read = { min = 10, max = 100 }, write = { min = 500, max = 5000 } }
      snapshot_group = { read = { min = 0, max = 9 }, write = { min = 600, max = 6000 } }
    }
  }

  expect_failures = [var.snapshot_group_table_name, var.kms_key_arn, var.tags, var.provisioned_capacity]
}

run "refuses_snapshot_group_name_with_a_character_outside_the_set_arn_of_another_service_too_many_tags_or_utilization_that_dynamodb_does_not_take" {
  command = plan

  variables {
    snapshot_group_table_name = "dynastate groups"
    kms_key_arn               = "arn:aws:s3:::bucket"
    tags                      = { for i in range(51) : "tag${i}" => "" }
    provisioned_capacity = {
      delta                      = { read = { min = 10, max = 100 }, write = { min = 500, max = 5000 } }
      snapshot_group             = { read = { min = 20, max = 200 }, write = { min = 600, max = 6000 } }
      target_utilization_percent = 95
    }
  }

  expect_failures = [var.snapshot_group_table_name, var.kms_key_arn, var.tags, var.provisioned_capacity]
}

run "refuses_equal_names_or_replica_with_a_key_where_the_tables_have_none" {
  command = plan

  variables {
    delta_table_name          = "dynastate"
    snapshot_group_table_name = "dynastate"
    stream_enabled            = true
    replicas                  = { eu-central-1 = { kms_key_arn = "arn:aws:kms:eu-central-1:111122223333:key/mrk-1" } }
  }

  expect_failures = [var.snapshot_group_table_name, var.replicas]
}

run "refuses_replicas_or_limits_on_demand_of_provisioned_tables" {
  command = plan

  variables {
    provisioned_capacity = {
      delta          = { read = { min = 1, max = 1 }, write = { min = 1, max = 1 } }
      snapshot_group = { read = { min = 1, max = 1 }, write = { min = 1, max = 1 } }
    }
    on_demand_throughput = { delta = { max_write_request_units = 1000 } }
    stream_enabled       = true
    replicas             = { eu-central-1 = {} }
  }

  expect_failures = [var.replicas, var.on_demand_throughput]
}

run "refuses_replicas_without_a_stream" {
  command = plan

  variables {
    replicas = { eu-central-1 = {} }
  }

  expect_failures = [var.replicas]
}
