"""Export of all rows of a version: as Parquet, or as JSON with one row a line."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dynastate.errors import ConfigurationError
from dynastate.operations.inspection.formats import Format
from dynastate.progress import ProgressCallback
from dynastate.reader.arrow import write_parquet
from dynastate.reader.json_rows import json_text, row_to_json

if TYPE_CHECKING:
    from dynastate.reader.view import StateView

#: Rows between two reports of progress.
_REPORT_ROWS: Final = 1_000


def export_rows(state: StateView, form: Format, output: Path | None, progress: ProgressCallback) -> int:
    """Write all rows to a file, replaced at the end, or without a file to standard output; return their number."""
    total = len(state)
    write = _write_parquet if form is Format.PARQUET else _write_lines
    with _replaced(output) as file:
        return write(state, file, lambda count: progress(count, total))


def _write_parquet(state: StateView, output: Path | None, report: Callable[[int], None]) -> int:
    if output is not None:
        return write_parquet(state.columns, state, output, report)
    # Parquet's writer ends every file, even after an error: nothing is sent before the end.
    with tempfile.TemporaryFile() as file:
        count = write_parquet(state.columns, state, file, report)
        file.seek(0)
        shutil.copyfileobj(file, sys.stdout.buffer)
    return count


def _write_lines(state: StateView, output: Path | None, report: Callable[[int], None]) -> int:
    columns, count = state.columns, 0
    with nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8") as file:
        for count, row in enumerate(state, 1):
            file.write(json_text(row_to_json(columns, row)) + "\n")
            if count % _REPORT_ROWS == 0:
                report(count)
    return count


@contextmanager
def _replaced(output: Path | None) -> Iterator[Path | None]:
    """A file beside `output`, which it replaces once it is complete."""
    if output is None:
        yield None
        return
    if not output.name:
        raise ConfigurationError("--output is not a file", file=str(output))
    temporary = output.with_name(f"{output.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(output)
    except OSError as error:
        raise ConfigurationError(f"the file cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
