"""Changes to a namespace: fork, adopt, roll back, compact, clean, drop."""
