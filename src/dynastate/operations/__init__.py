"""Operations on stores, one a file: inspect, verify, fork, compact, clean, drop, monitor, usage, scenarios."""
