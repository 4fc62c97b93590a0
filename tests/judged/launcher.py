"""`python -m tests.judged.launcher`: the sidecar, with the mutation of the simulation that the environment names.

Without one it is the sidecar as it is. Only this module reads the variable.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from dynastate.sidecar.process import main

MODULE: Final = "tests.judged.launcher"
MUTATION: Final = "DYNASTATE_MUTATION"


def mutated(name: str) -> AbstractContextManager[Any]:
    """This process, mutated; "": as it is, without the simulation's modules, which take a while to import."""
    if not name:
        return nullcontext()
    from tests.simulation.mutations import MUTATIONS  # noqa: PLC0415

    return MUTATIONS[name][0]()


if __name__ == "__main__":
    with mutated(os.environ[MUTATION]):
        main()
