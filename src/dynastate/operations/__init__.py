"""The tasks of an operator, a person: rooms by subject, and modules for several of them (`scope`, `pins`)."""
