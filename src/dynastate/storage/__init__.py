"""The seam to DynamoDB and S3: the few verbs that dynastate uses, their limits and their costs. No driver is here."""
