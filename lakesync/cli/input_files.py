"""Reads the files that commands get as arguments, as text, JSON or records; `-` is stdin. The command modules call it.

The records of a file are rows or deltas for `lakesync push`, as mappings from names to JSON values. Such a file is JSON
lines, a JSON list, or CSV with a header. CSV has texts only, so its fields are converted by the types of the columns in
the table's schema.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from lakesync.model.errors import ValidationError

if TYPE_CHECKING:
    from lakesync.model.schema import ColumnType

_MAX_FIELD_CHARS = 1 << 30
"""Characters of a CSV field, at most, instead of Python's low default; the gateway has its own limits."""
_TRUE, _FALSE = frozenset({"true", "yes", "t", "1"}), frozenset({"false", "no", "f", "0"})
"""Texts in a CSV field of a boolean column, in lower case."""


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file, with or without a byte order mark, without translating line ends.

    Args:
        path: the file; `-` is stdin.

    Raises:
        typer.BadParameter: the file cannot be read, here or in the context.
        ValidationError: the text that is read in the context is not UTF-8.
    """
    try:
        with ExitStack() as stack:
            raw = sys.stdin.buffer if str(path) == "-" else stack.enter_context(path.open("rb"))
            text = io.TextIOWrapper(raw, "utf-8-sig", newline="\n")
            stack.callback(text.detach)  # so that `text` does not close stdin when it is garbage-collected
            yield text
    except UnicodeDecodeError as error:
        raise ValidationError(f"{path} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from error


def read_text(path: Path) -> str:
    """Return the text of a file; `-` is stdin. Raises as `open_text` does."""
    with open_text(path) as text:
        return text.read()


def read_json(path: Path) -> Any:
    """Return the JSON value in a file; `-` is stdin.

    Raises:
        typer.BadParameter: the file cannot be read.
        ValidationError: the file is not JSON.
    """
    try:
        return _decode(read_text(path))
    except ValueError as error:
        raise ValidationError(f"{path} is not JSON: {error}") from error


def read_records(
    file: Path, id_column: str, column_types: Callable[[], Mapping[str, ColumnType]]
) -> Generator[Mapping[str, Any]]:
    """Yield the records of a file, which stays open until all are read or the generator is closed.

    Args:
        file: the file; `-` is stdin. A name that ends in `.csv` means CSV.
        id_column: the column with the row id, which stays a string in CSV.
        column_types: returns the types of the columns that the table's schema has. Called for CSV only.

    Raises:
        typer.BadParameter: the file cannot be read.
        ValidationError: the content is invalid; the message names the line.
    """
    with open_text(file) as lines:
        if file.suffix.lower() == ".csv":
            yield from _csv_rows(lines, file, {**column_types(), id_column: "string"})
        else:
            yield from _json_objects(lines, file)


def _json_objects(lines: Iterable[str], file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of JSON lines, or of a JSON list.

    Args:
        lines: the lines of the file.
        file: the file's name, for messages.

    Raises:
        ValidationError: the content is invalid; the message names the line.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    for number, line in numbered:
        if not line.lstrip().startswith("["):
            where = f"{file}, line {number}"
            yield _checked_object(_parsed(line, where), where)
            continue
        remaining_lines = (remaining for _, remaining in numbered)
        items = _parsed("".join((line, *remaining_lines)), str(file))  # a list may have any number of lines
        yield from (_checked_object(item, f"{file}, item {index}") for index, item in enumerate(items, 1))


def _csv_rows(lines: Iterable[str], file: Path, types: Mapping[str, ColumnType]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a CSV file with a header.

    Args:
        lines: the lines of the file.
        file: the file's name, for messages.
        types: the known types of columns.

    Raises:
        ValidationError: the file is not CSV, or a row has more or fewer fields than the header.
    """
    csv.field_size_limit(_MAX_FIELD_CHARS)
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, [])
        duplicates = [name for name, count in Counter(header).items() if count > 1]
        if duplicates:
            raise ValidationError(f"{file}: the header has {duplicates[0]!r} twice; rename one of the columns")
        for fields in filter(None, reader):  # without blank lines
            where = f"{file}, line {reader.line_num}"
            if len(fields) > len(header):
                raise ValidationError(f"{where}: more fields than the header; quote fields that contain commas")
            if len(fields) < len(header):
                raise ValidationError(
                    f"{where}: fewer fields than the header; write an empty field for a missing value"
                )
            yield {
                name: _value(field, types.get(name), f"{where}, {name}")
                for name, field in zip(header, fields, strict=True)
            }
    except csv.Error as error:
        raise ValidationError(f"{file}, line {reader.line_num}: not CSV: {error}") from error


def _value(field: str, kind: ColumnType | None, where: str) -> Any:
    """Return a CSV field as a JSON value; an empty field is null.

    Args:
        field: the field's text.
        kind: the column's type; None if unknown: then JSON numbers and booleans are recognised, all else is a string.
        where: the file, line and column, for messages.

    Raises:
        ValidationError: the column's type is `json`, and the field is not JSON.
    """
    if not field:
        return None
    if kind == "string":
        return field
    if kind == "boolean" and field.lower() in _TRUE | _FALSE:
        return field.lower() in _TRUE
    if kind == "json":
        return _parsed(field, where)
    try:
        decoded = _decode(field)
    except ValueError:
        return field
    return decoded if isinstance(decoded, int | float | bool) else field


def _parsed(text: str, where: str) -> Any:
    """Parse JSON; raise ValidationError with `where` if it is not."""
    try:
        return _decode(text)
    except ValueError as error:
        raise ValidationError(f"{where}: not JSON: {error}") from error


def _decode(text: str) -> Any:
    """Decode JSON; raise ValueError if it is not, or is nested too deeply for Python's decoder."""
    try:
        return json.loads(text, parse_constant=_reject_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("arrays or objects are nested too deeply") from None


def _reject_constant(name: str) -> NoReturn:
    """Reject NaN and Infinity, which Python's json accepts."""
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    """Parse a JSON number with a fraction or an exponent; raise ValueError if it is too large for a double."""
    number = float(digits)
    if math.isinf(number):  # JSON has no infinity, so the encoder would send null
        raise ValueError(f"{digits} is too large for a number; write it as a string")
    return number


def _checked_object(value: Any, where: str) -> Mapping[str, Any]:
    """Return a value; raise ValidationError with `where` if it is not a JSON object."""
    if not isinstance(value, dict):
        raise ValidationError(f"{where}: {str(value)[:60]!r} is not a JSON object")
    return value
