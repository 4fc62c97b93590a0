"""Metrics of running queries, from Spark's progress reports, for the systems that people watch them in."""
