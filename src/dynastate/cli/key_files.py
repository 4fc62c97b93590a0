"""Keys to erase, or to look for, from options: as texts, and in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dynastate.errors import ConfigurationError

if TYPE_CHECKING:
    from dynastate.operations.erase.keys import GivenKeys


def key_files(name: str) -> Any:
    """An option for files of keys."""
    return typer.Option(
        name,
        metavar="FILE",
        help="A file of such objects, one a line, or a list as sql --json prints it; once for each file.",
        exists=True,
        dir_okay=False,
    )


def keys_of(texts: Sequence[str] | None, files: Sequence[Path] | None) -> GivenKeys:
    """The keys of the options. Refuse a text that is not JSON, and a file that is not UTF-8."""
    from dynastate.operations.erase.keys import GivenKeys, keys_of_file
    from dynastate.reader.json_rows import parse_key

    in_files = [key for file in files or () for key in keys_of_file(_text_of(file))]
    return GivenKeys([*map(parse_key, texts or ()), *in_files])


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            "the file of keys is not UTF-8: save it as UTF-8", file=file, byte=error.start
        ) from None
