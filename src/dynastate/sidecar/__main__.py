"""`python -m dynastate.sidecar`: the sidecar process, which the provider starts."""

from dynastate.sidecar.process import main

main()
