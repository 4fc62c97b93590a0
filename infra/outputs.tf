output "delta_table_name" {
  description = "Name of the delta table."
  value       = aws_dynamodb_table.state["delta"].name
}

output "delta_table_arn" {
  description = "ARN of the delta table, for policies."
  value       = aws_dynamodb_table.state["delta"].arn
}

output "snapshot_group_table_name" {
  description = "Name of the snapshot-group table."
  value       = aws_dynamodb_table.state["snapshot_group"].name
}

output "snapshot_group_table_arn" {
  description = "ARN of the snapshot-group table, for policies."
  value       = aws_dynamodb_table.state["snapshot_group"].arn
}

output "spark_conf" {
  description = "The Spark settings that point dynastate at these tables, by key."
  value = merge(
    {
      "spark.sql.streaming.stateStore.dynastate.deltaTable"    = aws_dynamodb_table.state["delta"].name
      "spark.sql.streaming.stateStore.dynastate.snapshotTable" = aws_dynamodb_table.state["snapshot_group"].name
    },
    { for bucket in aws_s3_bucket.objects : "spark.sql.streaming.stateStore.dynastate.objects" => trimsuffix("s3://${bucket.bucket}/${var.objects_prefix}", "/") },
  )
}

output "writer_policies" {
  description = "IAM policy documents (JSON) for Spark's executors, by the names of namespaces."
  value       = local.namespaced_policies["writer"]

  precondition {
    condition     = alltrue([for document in local.namespaced_policies["writer"] : length(document) <= 6144])
    error_message = "namespaces must have fewer or shorter namespaces under one name: IAM takes policies of up to 6,144 characters."
  }
}

output "reader_policies" {
  description = "IAM policy documents (JSON) for readers of state, by the names of namespaces."
  value       = local.namespaced_policies["reader"]
}

output "eraser_policies" {
  description = "IAM policy documents (JSON) for whoever erases rows, by the names of namespaces."
  value       = local.namespaced_policies["eraser"]
}

output "objects_writer_policies" {
  description = "IAM policy documents (JSON) for the objects that Spark's executors write, by the names of namespaces; none without a bucket."
  value       = local.objects_policies["writer"]

  precondition {
    condition     = alltrue([for document in local.objects_policies["writer"] : length(document) <= 6144])
    error_message = "namespaces must have fewer or shorter namespaces under one name: IAM takes policies of up to 6,144 characters."
  }
}

output "objects_reader_policies" {
  description = "IAM policy documents (JSON) for the objects that readers read, by the names of namespaces; none without a bucket."
  value       = local.objects_policies["reader"]
}

output "objects_eraser_policies" {
  description = "IAM policy documents (JSON) for the objects that whoever erases rows reads, writes and deletes in all versions, by the names of namespaces; none without a bucket."
  value       = local.objects_policies["eraser"]
}

output "operator_policy" {
  description = "IAM policy document (JSON) for operators who create, change and destroy the tables, without access to the items."
  value       = local.operator_policy
}

output "objects_operator_policy" {
  description = "IAM policy document (JSON) for operators who create, change and destroy the bucket, without access to the objects; null without a bucket."
  value       = local.objects_operator_policy
}
