"""What a query costs, and what it would cost."""
