"""`lakesync push`: import deltas, or rows as new ones, from a file."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import completion, output
from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Claim, Data, Gateway, Json, TokenFile, Url, named_claims
from lakesync.cli.remote.record_files import records

if TYPE_CHECKING:
    from lakesync.client.transports.http import HttpTransport
    from lakesync.model.errors import Rejection
    from lakesync.model.hlc import HLC
    from lakesync.model.schema import ColumnType
    from lakesync.model.types import RowDelta

app = command_app()

_AT_ONCE = 1000
_BYTES = 900_000
"""Of a push; a gateway takes 1 MiB."""
_NAMED = 20
"""Refusals that are named one by one to people; programs are told all of them."""


@app.command(
    epilog=examples(
        ("lakesync push todos.csv --table todos --id id --client alice", "new rows; her app gets them too"),
        (
            """echo '{"row_id": "t1", "team": "red"}' | lakesync push - -t todos -c bob --claim team=red""",
            "JSON, a row a line",
        ),
        ("lakesync push deltas.jsonl --client alice", "deltas: op, table, rowId, columns; the rest is filled in"),
    )
)
def push(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", allow_dash=True, help="JSON lines, a JSON list or CSV; `-` is stdin.")
    ],
    table: Annotated[
        str | None,
        typer.Option(
            "--table", "-t", help="FILE has rows of this table.", show_default=False, autocompletion=completion.tables
        ),
    ] = None,
    id_column: Annotated[str, typer.Option("--id", help="Which of a row's fields is its id.")] = "row_id",
    client: Annotated[
        str | None, typer.Option("--client", "-c", help="The user it is for; else the token's sub.", show_default=False)
    ] = None,
    claim: Claim = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    update: Annotated[bool, typer.Option("--update", help="Rows are changes of rows that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Import deltas, or rows as new ones, from a file.

    The rules and the write scope apply as for the user, and the user's own apps receive the rows too: an import has a
    client id of its own, `import:USER`. A delta that names another client is imported under that id.

    Rejected deltas are named on stderr, and the others are pushed: exit code 6, or 5 if all were rejected. Repeat an
    interrupted import with the same file: a row is written again, and a delta with its own hlc is skipped.
    """
    from lakesync.cli.connection import connect
    from lakesync.model.client_ids import importer_of
    from lakesync.model.errors import LakeSyncError
    from lakesync.model.hlc import HLC

    remote = connect(url, gateway, token_file, data, role="client", client=client, claims=named_claims(claim))
    clock = HLC()
    user = client or remote.client_id
    who = importer_of(user)
    transport = remote.transport()

    def types() -> Mapping[str, ColumnType]:
        known = transport.schema(table) if table else None
        return known.schema.types if known else {}

    found = records(file, id_column, types)
    if table is None:
        deltas = (_delta(record, place, who, clock) for place, record in enumerate(found, 1))
    else:
        op = "UPDATE" if update else "INSERT"
        rows = (_row(record, place, table, id_column, op) for place, record in enumerate(found, 1))
        deltas = (_delta(record, place, who, clock) for place, record in enumerate(rows, 1))
    accepted, server_hlc, refusals = 0, 0, Refusals(user, as_json=as_json)
    try:
        with closing(found), output.working("pushing"):
            for batch in _batches(deltas):
                taken, refused, server_hlc = _push(transport, who, batch)
                accepted += taken
                refusals.tell(batch, refused)
    except (LakeSyncError, KeyboardInterrupt):
        if accepted:
            output.note(f"{accepted:,} were accepted before this")
        raise
    finally:
        transport.close()
    refusals.end()
    output.facts({"accepted": accepted, "rejected": len(refusals), "serverHlc": str(server_hlc)}, as_json=as_json)
    if refusals:
        raise typer.Exit(ExitCode.PARTIAL if accepted else ExitCode.INVALID)


def _batches(deltas: Iterable[RowDelta]) -> Iterator[list[RowDelta]]:
    """As many at once as a gateway takes."""
    from lakesync.wire.json import encode_delta

    batch: list[RowDelta] = []
    size = 0
    for delta in deltas:
        length = len(encode_delta(delta)) + 1
        if batch and (len(batch) == _AT_ONCE or size + length > _BYTES):
            yield batch
            batch, size = [], 0
        batch.append(delta)
        size += length
    if batch:
        yield batch


def _push(transport: HttpTransport, who: str, deltas: list[RowDelta]) -> tuple[int, tuple[Rejection, ...], int]:
    """Push; once more without those that were refused."""
    from lakesync.model.errors import RefusedError
    from lakesync.model.types import SyncPush

    try:
        done = transport.push(SyncPush(who, tuple(deltas)))
    except RefusedError as error:
        if not error.rejected:
            raise
        refused = {each.delta_id for each in error.rejected}
        left = [delta for delta in deltas if delta.delta_id not in refused]
        if len(left) == len(deltas):
            raise
        if not left:
            return 0, error.rejected, 0
        taken, more, server_hlc = _push(transport, who, left)
        return taken, (*error.rejected, *more), server_hlc
    return done.accepted, (), done.server_hlc


def _row(record: Mapping[str, Any], place: int, table: str, id_column: str, op: str) -> Mapping[str, Any]:
    from lakesync.model.errors import ValidationError

    identity = record.get(id_column)
    if identity is None:
        there = ", ".join(map(repr, record)) or "no field at all"
        raise ValidationError(f"row {place} has no {id_column!r}, it has {there}: name the field of its id with --id")
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        raise ValidationError(f"row {place} has the id {str(identity)[:60]}: an id is text, or a whole number")
    values = {name: value for name, value in record.items() if name != id_column}
    columns = [{"column": name, "value": value} for name, value in values.items()]
    return {"op": op, "table": table, "rowId": str(identity), "columns": columns}


def _delta(record: Mapping[str, Any], place: int, who: str, clock: HLC) -> RowDelta:
    """A delta in the wire's form, in which client, hlc and id may be missing, as one of client `who`."""
    import msgspec

    from lakesync.model.delta import delta_id
    from lakesync.model.errors import ValidationError
    from lakesync.model.types import RowDelta
    from lakesync.wire.misshapen import misspelt

    given = {"columns": (), "clientId": who, "deltaId": "", **record}
    given["hlc"] = given["hlc"] if "hlc" in record else clock.now()
    fault = misspelt("hlc", given["hlc"])
    if fault is not None:
        raise ValidationError(f"delta {place}: {fault}")
    try:
        delta = msgspec.json.decode(msgspec.json.encode(given), type=RowDelta, strict=False)
    except msgspec.ValidationError as error:
        raise ValidationError(f"delta {place} is not of the documented form: {error}") from error
    if delta.delta_id and delta.client_id == who:
        return delta
    identity = delta_id(client_id=who, hlc=delta.hlc, table=delta.table, row_id=delta.row_id, columns=delta.columns)
    return msgspec.structs.replace(delta, client_id=who, delta_id=identity)


class Refusals:
    """Gathered over the requests of one push."""

    def __init__(self, who: str, *, as_json: bool) -> None:
        """Args: who: as whom it is pushed."""
        self._who = who
        self._as_json = as_json
        self._codes: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._codes.total()

    def tell(self, deltas: Sequence[RowDelta], refused: Sequence[Rejection]) -> None:
        """Name what was refused of these deltas."""
        by_id = {delta.delta_id: delta for delta in deltas} if refused else {}
        for each in refused:
            self._codes[each.code] += 1
            delta = by_id.get(each.delta_id)  # a gateway may name one that was never sent
            if self._as_json:
                names = {"deltaId": each.delta_id, **({"table": delta.table, "rowId": delta.row_id} if delta else {})}
                print(json.dumps({"refused": {**names, "code": each.code, "message": each.message}}), file=sys.stderr)
            elif len(self) <= _NAMED:
                row = f"row {delta.row_id!r} of {delta.table}" if delta else "a row that was not sent"
                output.note(f"refused {row}: {each.code}: {each.message} (delta {each.delta_id})")

    def end(self) -> None:
        """Say what was not named, and what may help."""
        if not self._as_json and len(self) > _NAMED:
            kinds = ", ".join(f"{count:,} {code}" for code, count in self._codes.most_common())
            output.note(f"refused {len(self):,} in all ({kinds}); --json names each")
        if self._codes["FORBIDDEN"] and not self._as_json:
            output.note(
                f"  try: the rules show client {self._who!r} no such rows. Push as somebody whom they show them to: "
                "--client ID, and --claim NAME=VALUE where they read claims; `lakesync rules show` has them"
            )
