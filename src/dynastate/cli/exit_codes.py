"""Exit codes that have a name."""

from __future__ import annotations

#: Exit code of what Ctrl-C ended, as a shell has it.
INTERRUPTED = 130
