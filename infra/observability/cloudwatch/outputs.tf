output "alarm_names" {
  description = "Names of the alarms, by query and kind."
  value       = { for key, alarm in aws_cloudwatch_metric_alarm.query : key => alarm.alarm_name }
}
