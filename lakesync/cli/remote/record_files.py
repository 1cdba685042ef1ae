"""The rows or deltas in a file: JSON lines, a JSON list, or CSV with a heading."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lakesync.cli.options import reading

if TYPE_CHECKING:
    from lakesync.model.schema import ColumnType

_LONGEST = 1 << 30
"""Characters of a CSV's field: what is too long for it, the gateway says."""
_TRUE, _FALSE = frozenset({"true", "yes", "t", "1"}), frozenset({"false", "no", "f", "0"})


def records(file: Path, id_column: str, types: Callable[[], Mapping[str, ColumnType]]) -> Generator[Mapping[str, Any]]:
    """The objects of a file, which is open until all are read or the generator is closed; `-` is stdin.

    Args:
        id_column: stays text in CSV.
        types: asked for once CSV is read, which says nothing of types: what the columns hold, as far as that is known.

    Raises:
        typer.BadParameter: the file cannot be read.
        ValidationError: it is of no such form.
    """
    from lakesync.model.errors import ValidationError

    try:
        with reading(file) as lines:
            yield from _found(lines, file, id_column, types)
    except UnicodeDecodeError as error:
        raise ValidationError(f"{file} is no text in UTF-8: {error}") from error


def _found(
    lines: Iterable[str], file: Path, id_column: str, types: Callable[[], Mapping[str, ColumnType]]
) -> Iterator[Mapping[str, Any]]:
    if file.suffix.lower() == ".csv":
        yield from _of_csv(lines, file, {**types(), id_column: "string"})
        return
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    for number, line in numbered:
        if line.lstrip().startswith("["):
            text = "".join((line, *(more for _, more in numbered)))
            yield from (
                _object(each, f"{file}, item {place}") for place, each in enumerate(_parsed(text, str(file)), 1)
            )
        else:
            where = f"{file}, line {number}"
            yield _object(_parsed(line, where), where)


def _of_csv(text: Iterable[str], file: Path, types: Mapping[str, ColumnType]) -> Iterator[Mapping[str, Any]]:
    from lakesync.model.errors import ValidationError

    csv.field_size_limit(_LONGEST)
    lines = csv.reader(text, strict=True)
    try:
        heading = next(lines, [])
        twice = [name for name, count in Counter(heading).items() if count > 1]
        if twice:
            raise ValidationError(f"{file}: the heading names {twice[0]!r} twice: which of the two is meant?")
        for fields in filter(None, lines):
            where = f"{file}, line {lines.line_num}"
            if len(fields) > len(heading):
                raise ValidationError(f"{where}: more fields than the heading names: quote those that hold commas")
            if len(fields) < len(heading):
                raise ValidationError(
                    f"{where}: fewer fields than the heading names: leave those without a value empty"
                )
            yield {
                name: _value(field, types.get(name), f"{where}, {name}")
                for name, field in zip(heading, fields, strict=True)
            }
    except csv.Error as error:
        raise ValidationError(f"{file}, line {lines.line_num}: no CSV: {error}") from error


def _value(field: str, kind: ColumnType | None, where: str) -> Any:
    """A field as its column holds it; where nobody knows, numbers, true and false as JSON has them, else text."""
    if not field:
        return None
    if kind == "string":
        return field
    if kind == "boolean" and field.lower() in _TRUE | _FALSE:
        return field.lower() in _TRUE
    if kind == "json":
        return _parsed(field, where)
    try:
        found = json.loads(field, parse_constant=_no_constant, parse_float=_finite)
    except ValueError:
        return field
    return found if isinstance(found, int | float | bool) else field


def _parsed(text: str, where: str) -> Any:
    from lakesync.model.errors import ValidationError

    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except ValueError as error:
        raise ValidationError(f"{where}: no JSON: {error}") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no value of JSON's")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):  # it would be sent as null
        raise ValueError(f"{digits} is more than a number can be: give it as text")
    return number


def _object(value: Any, where: str) -> Mapping[str, Any]:
    from lakesync.model.errors import ValidationError

    if not isinstance(value, dict):
        raise ValidationError(f"{where}: {str(value)[:60]!r} is no JSON object")
    return value
