# The bucket for objects in S3, if objects_bucket_name is set: docs/objects-in-s3.md. Nothing in it may expire or move to an
# archive: dynastate deletes what no version needs.
locals {
  objects_buckets = var.objects_bucket_name == null ? [] : [var.objects_bucket_name]
  objects_prefix  = var.objects_prefix == "" ? "" : "${var.objects_prefix}/"

  # Names of objects begin with that of their snapshot-group table, and then as those of their stores do, with the
  # namespace. Tables that were restored from others read the objects of those, and neither write nor delete there.
  objects_folder = "${local.objects_prefix}${var.snapshot_group_table_name}/"
  objects_policies = {
    for role in ["writer", "reader", "eraser"] : role => {
      for name, namespaces in var.namespaces : name => jsonencode({
        Version = "2012-10-17"
        Statement = concat(
          jsondecode(templatefile("${path.module}/policies/objects_${role}.json.tftpl", {
            bucket_arn = aws_s3_bucket.objects[0].arn
            objects    = jsonencode([for namespace in namespaces : "${aws_s3_bucket.objects[0].arn}/${local.objects_folder}${namespace}/*"])
            prefixes   = jsonencode([for namespace in namespaces : "${local.objects_folder}${namespace}/*"])
          })).Statement,
          [for table in var.objects_restored_from : {
            Sid      = "RestoredFrom${index(var.objects_restored_from, table)}"
            Effect   = "Allow"
            Action   = "s3:GetObject"
            Resource = [for namespace in namespaces : "${aws_s3_bucket.objects[0].arn}/${local.objects_prefix}${table}/${namespace}/*"]
          }],
        )
      }) if length(local.objects_buckets) > 0
    }
  }
  objects_operator_policy = one([
    for bucket in aws_s3_bucket.objects :
    jsonencode(jsondecode(templatefile("${path.module}/policies/objects_operator.json.tftpl", { bucket_arn = bucket.arn })))
  ])
}

resource "aws_s3_bucket" "objects" {
  count = length(local.objects_buckets)

  bucket        = var.objects_bucket_name
  force_destroy = false
  tags          = var.tags
}

resource "aws_s3_bucket_public_access_block" "objects" {
  count = length(local.objects_buckets)

  bucket                  = aws_s3_bucket.objects[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "objects" {
  count = length(local.objects_buckets)

  bucket = aws_s3_bucket.objects[0].id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

# The same key as the tables'. A bucket key keeps requests to KMS few.
resource "aws_s3_bucket_server_side_encryption_configuration" "objects" {
  count = length(local.objects_buckets)

  bucket = aws_s3_bucket.objects[0].id

  rule {
    bucket_key_enabled = var.kms_key_arn != null

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

resource "aws_s3_bucket_versioning" "objects" {
  count = length(local.objects_buckets)

  bucket = aws_s3_bucket.objects[0].id

  versioning_configuration {
    status = var.objects_noncurrent_days == null ? "Suspended" : "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "objects" {
  count = length(local.objects_buckets)

  bucket = aws_s3_bucket.objects[0].id

  rule {
    id     = "unfinished-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  dynamic "rule" {
    for_each = var.objects_noncurrent_days == null ? [] : [var.objects_noncurrent_days]

    content {
      id     = "deleted-objects"
      status = "Enabled"

      filter {}

      noncurrent_version_expiration {
        noncurrent_days = rule.value
      }

      expiration {
        expired_object_delete_marker = true
      }
    }
  }

  depends_on = [aws_s3_bucket_versioning.objects]
}

resource "aws_s3_bucket_policy" "objects" {
  count = length(local.objects_buckets)

  bucket = aws_s3_bucket.objects[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat([{
      Sid       = "TlsOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.objects[0].arn, "${aws_s3_bucket.objects[0].arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }], local.cross_account["objects"])
  })

  depends_on = [aws_s3_bucket_public_access_block.objects]
}
