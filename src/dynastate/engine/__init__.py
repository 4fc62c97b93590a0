"""Open, write, commit, abort and recover versions; cache, snapshots, clean-up, and the catalog of stores."""
