"""`python -m dynastate.cli`: the command `dynastate`."""

from dynastate.cli.app import main

main()
