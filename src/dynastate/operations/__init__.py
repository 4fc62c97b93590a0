"""The tasks of an operator, a person: rooms by subject, and what all of them need (`scope`)."""
