"""What changes a namespace: fork, adopt, roll back, compact, clean, drop."""
