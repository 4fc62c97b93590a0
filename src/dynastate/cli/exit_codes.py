"""Exit codes that have a name."""

from __future__ import annotations

#: Exit code of a command that Ctrl-C ended, as shells have it.
INTERRUPTED = 130
#: Exit code of a command whose output is no longer read, as shells have it after SIGPIPE.
PIPE_CLOSED = 141
