"""The driver below `storage`, and the only boto3: requests, retries, wire form, tables made, the embedded engine."""
