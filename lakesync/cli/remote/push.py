"""`lakesync push`: imports rows or deltas from a file, by pushes to a gateway.

A delta is a change of some columns of one row: INSERT, UPDATE or DELETE. Its hlc (hybrid logical clock) decides which
of two writes to a column wins. A record of the file is a row or a delta, as a mapping from names to JSON values. Files
are JSON lines, a JSON list, or CSV with a header. CSV has texts only, so its fields are converted by the types in the
table's schema.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from lakesync.cli import output
from lakesync.cli.app import command_app, examples
from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.options import (
    Claim,
    Data,
    Gateway,
    Json,
    TokenFile,
    Url,
    complete_tables,
    open_text,
    parse_claim_options,
)
from lakesync.model.errors import LakeSyncError, RejectedError, ValidationError

if TYPE_CHECKING:
    from lakesync.client.transports.http import HttpTransport
    from lakesync.model.errors import Rejection
    from lakesync.model.hlc import HLC
    from lakesync.model.schema import ColumnType
    from lakesync.model.types import RowDelta

push_app = command_app()

_MAX_DELTAS = 1000
"""Deltas in one request, at most."""
_MAX_BYTES = 900_000
"""Bytes of deltas in one request, at most; a gateway accepts 1 MiB."""
_MAX_PRINTED = 20
"""Rejected deltas that are printed one by one as text, at most; `--json` prints all."""
_MAX_FIELD_CHARS = 1 << 30
"""Characters of a CSV field, at most, instead of Python's low default; the gateway has its own limits."""
_TRUE, _FALSE = frozenset({"true", "yes", "t", "1"}), frozenset({"false", "no", "f", "0"})
"""Texts in a CSV field of a boolean column, in lower case."""


@push_app.command(
    epilog=examples(
        ("lakesync push todos.csv --table todos --id id --client alice", "new rows"),
        (
            """echo '{"row_id": "t1", "team": "red"}' | lakesync push - -t todos -c bob --claim team=red""",
            "a row per line of JSON",
        ),
        ("lakesync push deltas.jsonl --client alice", "deltas with op, table, rowId, columns"),
    )
)
def push(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", allow_dash=True, help="JSON lines, a JSON list or CSV; `-` is stdin.")
    ],
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            "-t",
            help="Import FILE as rows of this table.",
            show_default=False,
            autocompletion=complete_tables,
        ),
    ] = None,
    id_column: Annotated[str, typer.Option("--id", help="Field with the row id.")] = "row_id",
    client: Annotated[
        str | None,
        typer.Option("--client", "-c", help="Import for this client; default: the token's sub.", show_default=False),
    ] = None,
    claim: Claim = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    update: Annotated[bool, typer.Option("--update", help="Update existing rows.")] = False,
    as_json: Json = False,
) -> None:
    """Import rows or deltas from a file.

    Sync rules and write scope apply as for the client. The deltas get the client id `import:CLIENT`, so that the
    client's own apps receive the rows too.

    Rejected deltas are printed on stderr and the others are pushed: exit code 6, or 5 if all were rejected. Repeat an
    interrupted import with the same file: rows are written again, and deltas with an hlc are skipped.
    """
    from lakesync.cli.connection import connect
    from lakesync.model.hlc import HLC
    from lakesync.model.validation import importer_of

    remote = connect(url, gateway, token_file, data, role="client", client=client, claims=parse_claim_options(claim))
    clock = HLC()
    client_id = client or remote.client_id
    importer_id = importer_of(client_id)
    transport = remote.transport()

    def types() -> Mapping[str, ColumnType]:
        """Return the types of the table's columns by the gateway's schema; empty without one."""
        registered = transport.schema(table) if table else None
        return registered.schema.types if registered else {}

    file_records = records(file, id_column, types)
    if table is None:
        deltas = (_delta(record, number, importer_id, clock) for number, record in enumerate(file_records, 1))
    else:
        op = "UPDATE" if update else "INSERT"
        rows = (_row_delta(record, number, table, id_column, op) for number, record in enumerate(file_records, 1))
        deltas = (_delta(record, number, importer_id, clock) for number, record in enumerate(rows, 1))
    accepted, server_hlc, rejections = 0, 0, Rejections(client_id, as_json=as_json)
    try:
        with closing(file_records), output.spinner("pushing"):
            for batch in _batches(deltas):
                accepted_in_batch, rejected, arrival = _push(transport, importer_id, batch)
                accepted, server_hlc = accepted + accepted_in_batch, max(server_hlc, arrival)
                rejections.report(batch, rejected)
    except (LakeSyncError, KeyboardInterrupt):
        if accepted:
            output.note(f"{accepted:,} deltas were accepted before this error")
        raise
    finally:
        transport.close()
    rejections.report_summary()
    output.fields({"accepted": accepted, "rejected": len(rejections), "serverHlc": str(server_hlc)}, as_json=as_json)
    if rejections:
        raise typer.Exit(ExitCode.PARTIAL if accepted else ExitCode.INVALID)


def _batches(deltas: Iterable[RowDelta]) -> Iterator[list[RowDelta]]:
    """Divide deltas into requests that a gateway accepts."""
    from lakesync.wire.json import encode_delta

    batch: list[RowDelta] = []
    size = 0
    for delta in deltas:
        length = len(encode_delta(delta)) + 1
        if batch and (len(batch) == _MAX_DELTAS or size + length > _MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(delta)
        size += length
    if batch:
        yield batch


def _push(transport: HttpTransport, importer: str, deltas: list[RowDelta]) -> tuple[int, tuple[Rejection, ...], int]:
    """Push deltas; if the gateway rejects some by name, push the others.

    Args:
        transport: sends the push.
        importer: the client id of the deltas.
        deltas: the deltas of one request.

    Returns:
        The number of accepted deltas, the rejections, and the arrival: the timestamp of receipt that the gateway gave
        to the push, 0 if it rejected all deltas.

    Raises:
        LakeSyncError: the gateway rejected the request as a whole, or did not answer.
    """
    from lakesync.model.types import SyncPush

    try:
        result = transport.push(SyncPush(importer, tuple(deltas)))
    except RejectedError as error:
        if not error.rejected:
            raise
        rejected_ids = {each.delta_id for each in error.rejected}
        remaining = [delta for delta in deltas if delta.delta_id not in rejected_ids]
        if len(remaining) == len(deltas):
            raise
        if not remaining:
            return 0, error.rejected, 0
        accepted, more_rejected, server_hlc = _push(transport, importer, remaining)
        return accepted, (*error.rejected, *more_rejected), server_hlc
    return result.accepted, (), result.server_hlc


def _row_delta(record: Mapping[str, Any], number: int, table: str, id_column: str, op: str) -> Mapping[str, Any]:
    """Return the JSON form of the delta that writes a row of the file.

    Args:
        record: the row's fields.
        number: the row's number in the file, from 1, for messages.
        table: the row's table.
        id_column: the field with the row id, which does not become a column.
        op: `INSERT` or `UPDATE`.

    Raises:
        ValidationError: the row has no id, or its id is neither a string nor an integer.
    """
    row_id = record.get(id_column)
    if row_id is None:
        known = ", ".join(map(repr, record)) or "no fields"
        raise ValidationError(
            f"row {number} has no field {id_column!r}, it has {known}; give the field of its id with --id"
        )
    if isinstance(row_id, bool) or not isinstance(row_id, str | int):
        raise ValidationError(f"row {number} has the id {str(row_id)[:60]}; an id must be a string or an integer")
    values = {name: value for name, value in record.items() if name != id_column}
    columns = [{"column": name, "value": value} for name, value in values.items()]
    return {"op": op, "table": table, "rowId": str(row_id), "columns": columns}


def _delta(record: Mapping[str, Any], number: int, importer: str, clock: HLC) -> RowDelta:
    """Return a delta from its JSON form, in which client id, hlc and delta id may be missing.

    A delta of another client becomes one of the importer, with a new delta id.

    Args:
        record: the JSON form.
        number: the delta's number in the file, from 1, for messages.
        importer: the client id of imported deltas.
        clock: stamps deltas without an hlc.

    Raises:
        ValidationError: the record is not a delta.
    """
    import msgspec

    from lakesync.model.delta import delta_id
    from lakesync.model.types import RowDelta
    from lakesync.wire.malformed import hlc_problem

    completed = {"columns": (), "clientId": importer, "deltaId": "", **record}
    completed["hlc"] = completed["hlc"] if "hlc" in record else clock.now()
    problem = hlc_problem("hlc", completed["hlc"])
    if problem is not None:
        raise ValidationError(f"delta {number}: {problem}")
    try:
        delta = msgspec.json.decode(msgspec.json.encode(completed), type=RowDelta, strict=False)
    except msgspec.ValidationError as error:
        raise ValidationError(f"delta {number} does not have the documented form: {error}") from error
    if delta.delta_id and delta.client_id == importer:
        return delta
    new_id = delta_id(client_id=importer, hlc=delta.hlc, table=delta.table, row_id=delta.row_id, columns=delta.columns)
    return msgspec.structs.replace(delta, client_id=importer, delta_id=new_id)


class Rejections:
    """Counts the deltas of one import that the gateway rejects, and prints them on stderr."""

    def __init__(self, client: str, *, as_json: bool) -> None:
        """Begin with no rejections.

        Args:
            client: the client id that the import is for.
            as_json: whether to print every rejection as a line of JSON; otherwise the first ones as text.
        """
        self._client = client
        self._as_json = as_json
        self._codes: Counter[str] = Counter()
        """Number of rejections by error code."""

    def __len__(self) -> int:
        return self._codes.total()

    def report(self, deltas: Sequence[RowDelta], rejected: Sequence[Rejection]) -> None:
        """Count and print the rejections of one request.

        Args:
            deltas: the deltas of the request.
            rejected: the gateway's rejections of some of them.
        """
        by_id = {delta.delta_id: delta for delta in deltas} if rejected else {}
        for each in rejected:
            self._codes[each.code] += 1
            delta = by_id.get(each.delta_id)  # None if the gateway names a delta that was not sent
            if self._as_json:
                names = {"deltaId": each.delta_id, **({"table": delta.table, "rowId": delta.row_id} if delta else {})}
                print(json.dumps({"rejected": {**names, "code": each.code, "message": each.message}}), file=sys.stderr)
            elif len(self) <= _MAX_PRINTED:
                row = f"row {delta.row_id!r} of {delta.table}" if delta else "a row that was not sent"
                output.note(f"rejected {row}: {each.code}: {each.message} (delta {each.delta_id})")

    def report_summary(self) -> None:
        """Print the number of rejections if not all were printed, and a remedy for FORBIDDEN."""
        if not self._as_json and len(self) > _MAX_PRINTED:
            kinds = ", ".join(f"{count:,} {code}" for code, count in self._codes.most_common())
            output.note(f"rejected {len(self):,} in total ({kinds}); --json prints each")
        if self._codes["FORBIDDEN"] and not self._as_json:
            output.note(
                f"  try: the rules do not show these rows to client {self._client!r}. Push as a client that may see"
                " them: --client ID, and --claim NAME=VALUE for claims that the rules read (`lakesync rules show`)"
            )


def records(file: Path, id_column: str, types: Callable[[], Mapping[str, ColumnType]]) -> Generator[Mapping[str, Any]]:
    """Yield the records of a file, which stays open until all are read or the generator is closed.

    Args:
        file: the file; `-` is stdin. A name that ends in `.csv` means CSV.
        id_column: the column with the row id, which stays a string in CSV.
        types: returns the known schema types of the columns. Called for CSV only, which has no types.

    Raises:
        typer.BadParameter: the file cannot be read.
        ValidationError: the content is invalid; the message names the line.
    """
    try:
        with open_text(file) as lines:
            yield from _objects(lines, file, id_column, types)
    except UnicodeDecodeError as error:
        raise ValidationError(f"{file} is not UTF-8 text: {error}") from error


def _objects(
    lines: Iterable[str], file: Path, id_column: str, types: Callable[[], Mapping[str, ColumnType]]
) -> Iterator[Mapping[str, Any]]:
    """Yield the records of an open file; `file` is its name, for the format and for messages.

    Raises:
        ValidationError: the content is invalid; the message names the line.
    """
    if file.suffix.lower() == ".csv":
        yield from _csv_rows(lines, file, {**types(), id_column: "string"})
        return
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    for number, line in numbered:
        if line.lstrip().startswith("["):
            remaining_lines = (remaining for _, remaining in numbered)
            text = "".join((line, *remaining_lines))  # a list may have any number of lines
            yield from (
                _object(each, f"{file}, item {number}") for number, each in enumerate(_parsed(text, str(file)), 1)
            )
        else:
            where = f"{file}, line {number}"
            yield _object(_parsed(line, where), where)


def _csv_rows(text: Iterable[str], file: Path, types: Mapping[str, ColumnType]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a CSV file with a header.

    Args:
        text: the lines of the file.
        file: the file's name, for messages.
        types: the known types of columns.

    Raises:
        ValidationError: the file is not CSV, or a row has more or fewer fields than the header.
    """
    csv.field_size_limit(_MAX_FIELD_CHARS)
    lines = csv.reader(text, strict=True)
    try:
        header = next(lines, [])
        duplicates = [name for name, count in Counter(header).items() if count > 1]
        if duplicates:
            raise ValidationError(f"{file}: the header has {duplicates[0]!r} twice; rename one of the columns")
        for fields in filter(None, lines):
            where = f"{file}, line {lines.line_num}"
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
        raise ValidationError(f"{file}, line {lines.line_num}: not CSV: {error}") from error


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
        decoded = json.loads(field, parse_constant=_reject_constant, parse_float=_finite)
    except ValueError:
        return field
    return decoded if isinstance(decoded, int | float | bool) else field


def _parsed(text: str, where: str) -> Any:
    """Parse JSON; raise ValidationError with `where` if it is not."""
    try:
        return json.loads(text, parse_constant=_reject_constant, parse_float=_finite)
    except ValueError as error:
        raise ValidationError(f"{where}: not JSON: {error}") from error


def _reject_constant(name: str) -> NoReturn:
    """Reject NaN and Infinity, which Python's json accepts."""
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    """Parse a JSON number with a fraction or an exponent; raise ValueError if it is too large for a double."""
    number = float(digits)
    if math.isinf(number):  # JSON has no infinity, so the encoder would send null
        raise ValueError(f"{digits} is too large for a number; write it as a string")
    return number


def _object(value: Any, where: str) -> Mapping[str, Any]:
    """Return a value; raise ValidationError with `where` if it is not a JSON object."""
    if not isinstance(value, dict):
        raise ValidationError(f"{where}: {str(value)[:60]!r} is not a JSON object")
    return value
