"""Watching a query that runs: activity, skew, reports of batches, exported metrics."""
