# Alarms and a dashboard for the metrics of dynastate.export_metrics(spark, "emf"), which a log agent sends to CloudWatch
# Logs, and that to CloudWatch. Values are those of single batches; what CloudWatch adds up is what Prometheus' counters
# have. tests/infra/test_observability.py compares the names with those that are exported.
locals {
  namespace = "dynastate"

  # Each alarm: metrics by their ids, of the query or of each of its operators, and an expression over them.
  kinds = {
    stalled = {
      description = "The query has begun no batch: it has stopped, its sources have no data, or a batch does not end."
      threshold   = "stalled_minutes"
      metrics     = { batches = { name = "dynastate_batches", stat = "Sum" } }
      operators   = {}
      expression  = "FILL(batches, 0)"
      comparison  = "LessThanThreshold"
      # A metric that is not sent is what this alarm is about.
      missing = "breaching"
    }
    slow = {
      description = "Batches take longer than they should: look at throttles, commit times and Spark's tasks."
      threshold   = "batch_seconds"
      metrics     = { duration = { name = "dynastate_batch_duration_seconds", stat = "Average" } }
      operators   = {}
      expression  = "duration"
      comparison  = "GreaterThanThreshold"
      missing     = "notBreaching"
    }
    throttled = {
      description = "DynamoDB throttles the query's requests: batches are slow, and fail if it goes on. Raise the table's capacity or limit."
      threshold   = "throttled_percent"
      metrics     = {}
      operators = {
        throttles = { name = "dynastate_throttles", stat = "Sum" }
        requests  = { name = "dynastate_requests", stat = "Sum" }
      }
      expression = "100 * SUM(METRICS(\"throttles\")) / SUM(METRICS(\"requests\"))"
      comparison = "GreaterThanThreshold"
      missing    = "notBreaching"
    }
    cost = {
      description = "The query spends more than it should: dynastate cost NAMESPACE --every S compares what would be cheaper."
      threshold   = "dollars_a_day"
      metrics     = {}
      operators = {
        cost        = { name = "dynastate_cost_dollars", stat = "Sum" }
        maintenance = { name = "dynastate_maintenance_cost_dollars", stat = "Sum" }
      }
      # Of five minutes, for a day.
      expression = "288 * SUM(METRICS())"
      comparison = "GreaterThanThreshold"
      missing    = "notBreaching"
    }
    lag = {
      description = "The watermark is far behind: input is late, or one source is idle."
      threshold   = "watermark_lag_seconds"
      metrics     = { lag = { name = "dynastate_watermark_lag_seconds", stat = "Maximum" } }
      operators   = {}
      expression  = "lag"
      comparison  = "GreaterThanThreshold"
      missing     = "notBreaching"
    }
  }

  alarms = merge([
    for query, settings in var.queries : {
      for kind, alarm in local.kinds : "${query}/${kind}" => merge(alarm, {
        query = query
        kind  = kind
        value = settings[alarm.threshold]
        sources = merge(
          { for id, metric in alarm.metrics : id => merge(metric, { dimensions = { query = query } }) },
          merge([
            for operator in settings.operators : {
              for id, metric in alarm.operators : "${id}_${operator}" => merge(metric, { dimensions = { query = query, operator = operator } })
            }
          ]...),
        )
      }) if settings[alarm.threshold] > 0
    }
  ]...)

  # The panels of the dashboard: metrics of each query, or of each operator, with their statistic.
  panels = [
    { title = "Batch duration, s", dimensions = "query", metrics = { dynastate_batch_duration_seconds = "p99" } },
    { title = "Batches", dimensions = "query", metrics = { dynastate_batches = "Sum" } },
    { title = "Watermark lag, s", dimensions = "query", metrics = { dynastate_watermark_lag_seconds = "Maximum" } },
    { title = "Input rows", dimensions = "query", metrics = { dynastate_input_rows = "Sum" } },
    { title = "Rows of state", dimensions = "query,operator", metrics = { dynastate_state_rows = "Maximum" } },
    { title = "Stored bytes", dimensions = "query,operator", metrics = { dynastate_stored_bytes = "Maximum", dynastate_stored_object_bytes = "Maximum" } },
    { title = "Time in commit and load, s", dimensions = "query,operator", metrics = { dynastate_commit_seconds = "Sum", dynastate_load_seconds = "Sum" } },
    { title = "Write units", dimensions = "query,operator", metrics = { dynastate_write_units = "Sum", dynastate_maintenance_write_units = "Sum", dynastate_delete_units = "Sum" } },
    { title = "Read units", dimensions = "query,operator", metrics = { dynastate_read_units = "Sum", dynastate_maintenance_read_units = "Sum" } },
    { title = "Requests of S3", dimensions = "query,operator", metrics = { dynastate_puts = "Sum", dynastate_gets = "Sum" } },
    { title = "Dollars", dimensions = "query,operator", metrics = { dynastate_cost_dollars = "Sum", dynastate_maintenance_cost_dollars = "Sum" } },
    { title = "Throttles and retries", dimensions = "query,operator", metrics = { dynastate_throttles = "Sum", dynastate_retries = "Sum" } },
    { title = "Caches", dimensions = "query,operator", metrics = { dynastate_cache_misses = "Sum", dynastate_item_cache_misses = "Sum" } },
    { title = "Disk tier, bytes", dimensions = "query,operator", metrics = { dynastate_disk_bytes = "Maximum" } },
    { title = "Forced snapshots", dimensions = "query,operator", metrics = { dynastate_forced_snapshots = "Sum" } },
  ]
}

resource "aws_cloudwatch_metric_alarm" "query" {
  for_each = local.alarms

  alarm_name          = "dynastate-${each.value.query}-${each.value.kind}"
  alarm_description   = each.value.description
  comparison_operator = each.value.comparison
  threshold           = each.value.kind == "stalled" ? 1 : each.value.value
  treat_missing_data  = each.value.missing
  alarm_actions       = var.actions
  ok_actions          = var.actions
  tags                = var.tags

  # No batch in any of these periods; of the others three of the last half hour, so that one batch raises no alarm.
  evaluation_periods  = each.value.kind == "stalled" ? ceil(each.value.value / 5) : 6
  datapoints_to_alarm = each.value.kind == "stalled" ? ceil(each.value.value / 5) : 3

  metric_query {
    id          = "found"
    expression  = each.value.expression
    label       = "${each.value.kind}: ${each.value.query}"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = each.value.sources

    content {
      id = metric_query.key

      metric {
        namespace   = local.namespace
        metric_name = metric_query.value.name
        dimensions  = metric_query.value.dimensions
        stat        = metric_query.value.stat
        period      = 300
      }
    }
  }
}

# The dashboard searches by dimensions, so it shows every query that exports metrics.
resource "aws_cloudwatch_dashboard" "queries" {
  count = var.dashboard_name == null ? 0 : 1

  dashboard_name = var.dashboard_name
  dashboard_body = jsonencode({
    widgets = [
      for number, panel in local.panels : {
        type   = "metric"
        x      = 8 * (number % 3)
        y      = 6 * floor(number / 3)
        width  = 8
        height = 6
        properties = {
          title  = panel.title
          region = var.region
          view   = "timeSeries"
          period = 60
          metrics = [
            for metric, stat in panel.metrics :
            [{ expression = "SEARCH('{${local.namespace},${panel.dimensions}} MetricName=\"${metric}\"', '${stat}', 60)" }]
          ]
        }
      }
    ]
  })
}
