"""The command `dynastate`: commands in groups, without logic of their own."""
