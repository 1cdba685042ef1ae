"""`lakesync push`: imports rows or deltas from a file, by pushes to a gateway (one app's stream of deltas).

A delta is a change of some columns of one row: INSERT, UPDATE or DELETE. Its hlc (hybrid logical clock) decides which
of two writes to a column wins. A record of the file is a row or a delta. A row becomes a delta here, and all deltas get
the client id of the import. A push is one request with deltas. The gateway's sync rules and its write scope decide
which rows a client may write.

A parameter `options: ConnectionOptions` adds the options that choose gateway and token, from `--url` to `--data`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import output
from lakesync.cli.commands import (
    Claim,
    ConnectionOptions,
    Json,
    command_app,
    complete_tables,
    examples,
    parse_claim_options,
)
from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.input_files import read_records
from lakesync.model.errors import LakeSyncError, RejectedError, ValidationError

if TYPE_CHECKING:
    from lakesync.client.transports.http import HttpTransport
    from lakesync.model.errors import Rejection
    from lakesync.model.hlc import HLC
    from lakesync.model.schema import ColumnType
    from lakesync.model.types import PushResult, RowDelta

push_app = command_app()

_MAX_DELTAS = 1000
"""Deltas in one request, at most."""
_MAX_BYTES = 900_000
"""Bytes of deltas in one request, at most; a gateway accepts 1 MiB."""
_MAX_PRINTED = 20
"""Rejected deltas that are printed one by one as text, at most; `--json` prints all."""


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
        typer.Option("--table", "-t", help="Import FILE as rows of this table.", autocompletion=complete_tables),
    ] = None,
    id_column: Annotated[str, typer.Option("--id", help="Field with the row id.")] = "row_id",
    client: Annotated[
        str | None, typer.Option("--client", "-c", help="Import for this client; default: the token's sub.")
    ] = None,
    claim: Claim = None,
    *,
    options: ConnectionOptions,
    update: Annotated[bool, typer.Option("--update", help="Update existing rows.")] = False,
    as_json: Json = False,
) -> None:
    """Import rows or deltas from a file.

    Sync rules and write scope apply as for the client. The deltas get the client id `import:CLIENT`, so that the
    client's own apps receive the rows too.

    Rejected deltas are printed on stderr and the others are pushed: exit code 6, or 5 if all were rejected. Repeat an
    interrupted import with the same file: rows are written again, and deltas with an hlc are skipped.
    """
    from lakesync.model.hlc import HLC
    from lakesync.model.validation import importer_of

    remote = options.connect(role="client", client=client, claims=parse_claim_options(claim))
    clock = HLC()
    client_id = client or remote.client_id
    importer_id = importer_of(client_id)
    transport = remote.transport

    def column_types() -> Mapping[str, ColumnType]:
        """Return the types of the table's columns by the gateway's schema; empty without one."""
        registered = transport.schema(table) if table else None
        return registered.schema.types if registered else {}

    def delta_of(record: Mapping[str, Any], number: int) -> RowDelta:
        """Return the delta of a record, which is a row if `--table` was given; `number` is for messages."""
        if table is not None:
            record = _row_as_delta(record, number, table, id_column, "UPDATE" if update else "INSERT")
        return _complete_delta(record, number, importer_id, clock)

    records = read_records(file, id_column, column_types)
    accepted, rejections = 0, Rejections(client_id, as_json=as_json)
    try:
        with closing(records), output.spinner("pushing") as show:
            for deltas in _requests(delta_of(record, number) for number, record in enumerate(records, 1)):
                result, rejected = _push(transport, importer_id, deltas)
                accepted += result.accepted
                rejections.report(deltas, rejected)
                show(f"pushing; {output.count(accepted, 'delta')} accepted")
    except (LakeSyncError, KeyboardInterrupt):
        if accepted:
            output.note(f"{output.count(accepted, 'delta was', 'deltas were')} accepted before this error")
        raise
    finally:
        transport.close()
    rejections.report_summary()
    output.print_fields({"accepted": accepted, "rejected": len(rejections)}, as_json=as_json)
    if rejections:
        raise typer.Exit(ExitCode.PARTIAL if accepted else ExitCode.INVALID)


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


def _requests(deltas: Iterable[RowDelta]) -> Iterator[list[RowDelta]]:
    """Divide deltas among requests of a size that a gateway accepts."""
    from lakesync.wire.json import encode_delta

    request: list[RowDelta] = []
    size = 0
    for delta in deltas:
        length = len(encode_delta(delta)) + 1  # with the comma that separates it from the next one
        if request and (len(request) == _MAX_DELTAS or size + length > _MAX_BYTES):
            yield request
            request, size = [], 0
        request.append(delta)
        size += length
    if request:
        yield request


def _push(transport: HttpTransport, importer: str, deltas: list[RowDelta]) -> tuple[PushResult, list[Rejection]]:
    """Push deltas. If the gateway rejects the push because of some deltas, which it names, push the others.

    Args:
        transport: sends the push.
        importer: the client id of the deltas.
        deltas: the deltas of one request.

    Returns:
        The gateway's response to the accepted deltas, which is empty if it rejected all; and its rejections.

    Raises:
        LakeSyncError: the gateway rejected the request as a whole, or did not answer.
    """
    from lakesync.model.types import PushResult, SyncPush

    rejected: list[Rejection] = []
    while deltas:
        try:
            return transport.push(SyncPush(importer, tuple(deltas))), rejected
        except RejectedError as error:
            rejected_ids = {each.delta_id for each in error.rejected}
            if rejected_ids.isdisjoint(delta.delta_id for delta in deltas):
                raise
            rejected += error.rejected
            deltas = [delta for delta in deltas if delta.delta_id not in rejected_ids]
    return PushResult(0, 0), rejected


def _row_as_delta(record: Mapping[str, Any], number: int, table: str, id_column: str, op: str) -> Mapping[str, Any]:
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


def _complete_delta(record: Mapping[str, Any], number: int, importer: str, clock: HLC) -> RowDelta:
    """Return a delta from its JSON form, in which client id, hlc and delta id may be missing.

    A delta of another client becomes one of the importer, with a new delta id.

    Args:
        record: the JSON form.
        number: the delta's number in the file, from 1, for messages.
        importer: the client id of imported deltas.
        clock: gives an hlc to deltas without one.

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
    except UnicodeEncodeError as error:
        raise ValidationError(f"delta {number} contains half of a surrogate pair, which is no text: {error}") from error
    if delta.delta_id and delta.client_id == importer:
        return delta
    new_id = delta_id(client_id=importer, hlc=delta.hlc, table=delta.table, row_id=delta.row_id, columns=delta.columns)
    return msgspec.structs.replace(delta, client_id=importer, delta_id=new_id)
