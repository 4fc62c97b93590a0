"""The seam to DynamoDB and S3: the verbs that dynastate uses, their limits and their costs. It has no driver."""
