"""Moves of a stopped query's state to another store or to other partitions, each with a checkpoint to resume from."""
