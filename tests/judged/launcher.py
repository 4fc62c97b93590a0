"""`python -m tests.judged.launcher`: the sidecar, with the mutation of the simulation that the environment names.

Without one it is the sidecar as it is. Only this module reads the variable.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Final

from dynastate.sidecar.process import main
from tests.simulation.mutations import MUTATIONS

MODULE: Final = "tests.judged.launcher"
MUTATION: Final = "DYNASTATE_MUTATION"

if __name__ == "__main__":
    name = os.environ[MUTATION]
    with MUTATIONS[name][0]() if name else nullcontext():
        main()
