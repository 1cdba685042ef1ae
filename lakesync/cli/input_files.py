"""Reads the files that commands get as arguments, as text or JSON; `-` is stdin. The modules of commands call it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer

from lakesync.model.errors import ValidationError


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file, with or without a byte order mark, without translating line ends.

    Reading it raises UnicodeDecodeError if it is not UTF-8.

    Args:
        path: the file; `-` is stdin.

    Raises:
        typer.BadParameter: the file cannot be opened.
    """
    with ExitStack() as stack:
        try:
            raw = sys.stdin.buffer if str(path) == "-" else stack.enter_context(path.open("rb"))
        except OSError as error:
            raise typer.BadParameter(f"{path} cannot be read: {error}") from error
        text = io.TextIOWrapper(raw, "utf-8-sig", newline="\n")
        stack.callback(text.detach)  # so that `text` does not close stdin when it is garbage-collected
        yield text


def read_text(path: Path) -> str:
    """Return the text of a file; `-` is stdin.

    Raises:
        typer.BadParameter: the file cannot be read.
        ValidationError: the file is not UTF-8.
    """
    try:
        with open_text(path) as text:
            return text.read()
    except UnicodeDecodeError as error:
        raise ValidationError(f"{path} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> Any:
    """Return the JSON value in a file; `-` is stdin.

    Raises:
        typer.BadParameter: the file cannot be read.
        ValidationError: the file is not JSON.
    """
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise ValidationError(f"{path} is not JSON: {error}") from error
