"""The cost of a query: its requests, prices, and scenarios."""
