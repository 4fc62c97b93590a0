"""The only boto3: the verbs, retries, wire form, metering, table administration, the embedded engine."""
