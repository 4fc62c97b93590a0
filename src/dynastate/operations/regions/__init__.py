"""State in other tables, Regions and accounts: copy, failover."""
