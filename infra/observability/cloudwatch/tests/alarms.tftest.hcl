# Alarms of queries, on metrics and dimensions that dynastate exports, and the dashboard.

mock_provider "aws" {}

variables {
  region = "eu-west-1"
}

run "nothing_but_a_dashboard_without_queries" {
  command = plan

  assert {
    condition     = length(aws_cloudwatch_metric_alarm.query) == 0 && length(aws_cloudwatch_dashboard.queries) == 1
    error_message = "Without queries there must be a dashboard only."
  }
}

run "no_dashboard" {
  command = plan

  variables {
    dashboard_name = null
  }

  assert {
    condition     = length(aws_cloudwatch_dashboard.queries) == 0
    error_message = "Without a name there must be no dashboard."
  }
}

run "alarms_of_a_query" {
  command = plan

  variables {
    actions = ["arn:aws:sns:eu-west-1:111122223333:pager"]
    queries = {
      orders = {
        operators             = ["0", "1"]
        stalled_minutes       = 12
        batch_seconds         = 60
        dollars_a_day         = 20
        watermark_lag_seconds = 900
      }
      clicks = { throttled_percent = 0 }
    }
    tags = { team = "one" }
  }

  assert {
    condition = toset([for alarm in aws_cloudwatch_metric_alarm.query : alarm.alarm_name]) == toset([
      "dynastate-orders-stalled", "dynastate-orders-slow", "dynastate-orders-throttled", "dynastate-orders-cost",
      "dynastate-orders-lag", "dynastate-clicks-stalled",
    ])
    error_message = "Each threshold must have an alarm, and 0 none."
  }

  assert {
    condition = alltrue([
      for alarm in aws_cloudwatch_metric_alarm.query : alltrue([
        alarm.alarm_actions == toset(["arn:aws:sns:eu-west-1:111122223333:pager"]),
        alarm.ok_actions == alarm.alarm_actions,
        alarm.tags == tomap({ team = "one" }),
        length([for query in alarm.metric_query : query if query.return_data == true]) == 1,
        length(alarm.metric_query) <= 10,
      ])
    ])
    error_message = "Every alarm must notify, tell when it is over, have the tags, and one expression."
  }

  assert {
    condition = {
      for query in aws_cloudwatch_metric_alarm.query["orders/throttled"].metric_query :
      query.id => [query.metric[0].namespace, query.metric[0].metric_name, query.metric[0].stat, query.metric[0].dimensions]
      if length(query.metric) > 0
      } == {
      throttles_0 = ["dynastate", "dynastate_throttles", "Sum", tomap({ query = "orders", operator = "0" })]
      throttles_1 = ["dynastate", "dynastate_throttles", "Sum", tomap({ query = "orders", operator = "1" })]
      requests_0  = ["dynastate", "dynastate_requests", "Sum", tomap({ query = "orders", operator = "0" })]
      requests_1  = ["dynastate", "dynastate_requests", "Sum", tomap({ query = "orders", operator = "1" })]
    }
    error_message = "Throttles must be compared with requests, over all operators."
  }

  # A query that has stopped sends no metric.
  assert {
    condition = (
      aws_cloudwatch_metric_alarm.query["orders/stalled"].treat_missing_data == "breaching" &&
      aws_cloudwatch_metric_alarm.query["orders/stalled"].comparison_operator == "LessThanThreshold" &&
      aws_cloudwatch_metric_alarm.query["orders/stalled"].threshold == 1 &&
      aws_cloudwatch_metric_alarm.query["orders/stalled"].evaluation_periods == 3 &&
      aws_cloudwatch_metric_alarm.query["orders/stalled"].datapoints_to_alarm == 3
    )
    error_message = "No batch in the minutes that were given must raise an alarm."
  }

  assert {
    condition = alltrue([
      for key, threshold in { slow = 60, throttled = 5, cost = 20, lag = 900 } :
      aws_cloudwatch_metric_alarm.query["orders/${key}"].threshold == threshold &&
      aws_cloudwatch_metric_alarm.query["orders/${key}"].treat_missing_data == "notBreaching" &&
      aws_cloudwatch_metric_alarm.query["orders/${key}"].datapoints_to_alarm == 3
    ])
    error_message = "The other alarms must have the thresholds, and need three periods."
  }
}

run "the_dashboard" {
  command = plan

  assert {
    condition = alltrue([
      for widget in jsondecode(aws_cloudwatch_dashboard.queries[0].dashboard_body).widgets : alltrue([
        widget.properties.region == "eu-west-1",
        widget.x + widget.width <= 24,
        alltrue([for metric in widget.properties.metrics : startswith(metric[0].expression, "SEARCH('{dynastate,query")]),
      ])
    ])
    error_message = "Every widget must search the metrics of queries, and fit the grid."
  }
}

run "wrong_values" {
  command = plan

  variables {
    region         = "Frankfurt"
    dashboard_name = "a b"
    actions        = ["pager"]
    queries        = { orders = { stalled_minutes = 1 } }
  }

  expect_failures = [var.region, var.dashboard_name, var.actions, var.queries]
}

run "no_operators" {
  command = plan

  variables {
    queries = { orders = { operators = [] } }
  }

  expect_failures = [var.queries]
}
