"""Exit codes that have a name."""

from __future__ import annotations

#: Exit code of a command that Ctrl-C ended, as shells have it.
INTERRUPTED = 130
