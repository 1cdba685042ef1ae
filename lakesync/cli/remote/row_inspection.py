"""`lakesync explain`, `row history` and `trace`: commands about one row or one delta (a change of a row).

`explain` shows why a client sees a row or does not. The gateway computes that from the sync rules, the client's claims
(what its token says about the user), and what it has sent to the client. `row history` shows every delta of a row and
the outcome of each value that it wrote, and `trace` follows a delta from its client to the tables and clients that have
it. `lakesync.analysis.provenance` finds deltas in the lake and the gateway's log; the gateway knows the clients.

In the path of a request, `{gateway}` is the gateway's id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.app import command_app, examples
from lakesync.cli.options import (
    Data,
    Gateway,
    Json,
    RowId,
    RowTable,
    TokenFile,
    Url,
    complete_gateways,
    load_settings,
    parse_claims,
)
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import wall_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.text import Text

    from lakesync.analysis.provenance import DeltaProvenance, TracedDelta

explain_app, trace_app = command_app(), command_app()
row_app = command_app(
    "Inspect one row of the lake.",
    examples(("lakesync row history orders 4711", "every delta and its outcome")),
)

_STYLES = {"live": "green", "replaced": "dim", "lost": "red", "deleted": "red", "repeated": "dim"}
"""Outcome of a value → its style in the terminal."""


@explain_app.command(
    epilog=examples(
        ("lakesync explain todos t1 --client bob", "with the claims of Bob's last pull"),
        ("lakesync explain todos t1 --as sub=bob,team=blue", "with other claims"),
        ("""lakesync explain todos t1 --as '{"sub": "bob", "team": ["red", "blue"]}' --json""", "claims as JSON"),
    )
)
def explain(
    table: RowTable,
    row: RowId,
    claims: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="CLAIMS", help="Claims: JSON, @FILE, or NAME=VALUE,NAME=VALUE.", show_default=False
        ),
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", "-c", help="The client; default: sub of --as.", show_default=False)
    ] = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Explain why a client sees a row or does not.

    Shows each clause of the sync rules. The verdict is absent, deleted, hidden, waiting (the next pull returns the
    row) or delivered.
    """
    from lakesync.cli.connection import connect

    parsed_claims = parse_claims(claims)
    client_id = client or (parsed_claims or {}).get("sub")
    if not isinstance(client_id, str):
        raise typer.BadParameter("no client is given; give --client ID, or a sub in --as")
    explanation = connect(url, gateway, token_file, data).get(
        "/admin/explain/{gateway}",
        clientId=client_id,
        table=table,
        rowId=row,
        claims=None if parsed_claims is None else json.dumps(parsed_claims),
    )
    if as_json:
        output.record(explanation)
        return
    print(f"{explanation['verdict']}: {explanation['reasons'][0] if explanation['reasons'] else ''}")
    for reason in explanation["reasons"][1:]:
        print(f"  {reason}")
    if explanation["row"]["visible"]:  # no clause matches a row that was deleted or never existed
        _print_details(explanation)


def _print_details(explanation: dict[str, Any]) -> None:
    """Print a table of the rules' clauses, and one of the row's columns with the deltas that wrote them."""
    if explanation["buckets"]:
        print()
    output.records(
        _clauses(explanation),
        as_json=False,
        columns=("bucket", "clause", "row", "compared=compared with", "result"),
        none="the gateway has no sync rules, so every client sees every row",
    )
    print()
    output.records(
        (
            {
                **each,
                "written": output.utc_time(wall_of(int(each["hlc"]))),
                "touched": output.utc_time(each["touchedMs"]),
                "delta": each["deltaId"][:12],
            }
            for each in explanation["row"]["columns"]
        ),
        as_json=False,
        columns=("column", "clientId=written by", "written", "touched=changed or contested", "delta"),
        none="the row has no values",
    )


def _clauses(explanation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each filter of each bucket, and one for a bucket without filters or about other tables.

    A bucket is a part of the sync rules: tables, and filters that compare columns with claims.
    """
    for bucket in explanation["buckets"]:
        name = bucket["bucket"]
        if not bucket["coversTable"]:
            yield {"bucket": name, "clause": "tables", "row": None, "compared": None, "result": "not about this table"}
            continue
        if not bucket["filters"]:
            yield {"bucket": name, "clause": "(every row)", "row": None, "compared": None, "result": _result(True)}
        for each in bucket["filters"]:
            yield {
                "bucket": name,
                "clause": f"{each['column']} {each['op']} {each['value']}",
                "row": each["found"],
                "compared": ", ".join(each["operands"]) or "no such claim",
                "result": _result(each["holds"]),
            }


def _result(matches: bool) -> str:
    """Return the text for whether a clause matches."""
    return "matches" if matches else "does not match"


@row_app.callback()
def row() -> None:
    """Inspect one row of the lake."""


@row_app.command(
    epilog=examples(
        ("lakesync row history orders 4711", "in every gateway that has the row"),
        ("lakesync row history orders 4711 --gateway shop --json", "one gateway, as JSON"),
    )
)
def history(
    table: RowTable,
    row_id: RowId,
    gateway: Annotated[
        str | None,
        typer.Option(
            "--gateway",
            "-g",
            help="Search only this gateway; default: all.",
            show_default=False,
            autocompletion=complete_gateways,
        ),
    ] = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Show every delta of a row, and why each value won or lost.

    Deltas are printed in order of arrival.
    """
    from lakesync.analysis.provenance import row_history

    deltas = row_history(load_settings(data), table, row_id, gateway)
    if as_json:
        for delta in deltas:
            output.record(delta)
        return
    _print_deltas(deltas)


def _print_deltas(deltas: list[DeltaProvenance]) -> None:
    """Print a table of deltas for each gateway."""
    from rich.text import Text

    gateways = dict.fromkeys(delta.gateway for delta in deltas)
    for gateway in gateways:
        if len(gateways) > 1:
            print(f"gateway {gateway}")
        rows = []
        for delta in deltas:
            if delta.gateway == gateway:
                arrived = delta.arrived if delta.flushed else f"{delta.arrived} (not flushed)"
                rows.append((*map(Text, (arrived, delta.written, delta.client_id, delta.op)), _outcomes(delta)))
        output.table(("arrived", "written", "client", "op", "outcome"), rows)


def _outcomes(delta: DeltaProvenance) -> Text:
    """Return a line for each column of a delta: value, outcome, and the reason for the outcome."""
    from rich.text import Text

    lines = [Text(delta.note)] if delta.note else []
    for cell in delta.columns:
        line = Text(f"{cell.column} = {bytes(cell.value).decode()}  ")
        line.append(cell.outcome, style=_STYLES[cell.outcome])
        line.append(f": {cell.reason}" if cell.reason else "", style="dim")
        lines.append(line)
    return Text("\n").join(lines)


@trace_app.command(
    epilog=examples(
        ("lakesync trace 3f0d2ad02d76", "8 characters of the id are enough"),
        ("lakesync row history todos t1 --json | jq -r .delta_id", "find delta ids"),
    )
)
def trace(
    delta: Annotated[
        str,
        typer.Argument(metavar="DELTA", help="The delta's id, or at least its first 8 characters.", show_default=False),
    ],
    clients: Annotated[int, typer.Option(help="Clients to check at most.", min=0, max=1000)] = 50,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Trace a delta through commit, flush, lake and clients.

    Shows commit, flush batch, snapshot, state table and checkpoint from the log and the lake, and the clients that
    have the row from the gateway. Exits with 6 if the gateway does not answer.
    """
    import msgspec

    from lakesync.analysis.provenance import trace as traced

    with output.spinner("searching"):
        traced_delta = traced(load_settings(data), delta, gateway)
        holders, problem = _holders(traced_delta, clients, url, token_file, data) if clients else (None, None)
    if as_json:
        unanswered = {"unanswered": problem} if problem else {}
        output.record({**msgspec.to_builtins(traced_delta), "holders": holders, **unanswered})
    else:
        _print_trace(traced_delta, holders)
    if problem:
        raise typer.Exit(exit_codes.report_unanswered(f"clients with the row: {problem}", as_json=as_json))


def _holders(
    delta: TracedDelta, clients: int, url: str | None, token_file: Path | None, data: Path | None
) -> tuple[dict[str, Any] | None, str | None]:
    """Ask the gateway which columns still have the delta's values, and which clients have the row.

    Args:
        delta: the traced delta.
        clients: number of clients to check, at most.
        url: the gateway's URL (`--url`); None for that of the settings.
        token_file: the file with an admin's token (`--token-file`); None for LAKESYNC_TOKEN, or a new token.
        data: the data folder (`--data`); None for that of the settings.

    Returns:
        The object `holders` of the JSON output and None; or None and the reason why the gateway did not answer.
    """
    from lakesync.cli.connection import connect
    from lakesync.model.validation import user_of

    try:
        remote = connect(url, delta.gateway, token_file, data)
        metrics = remote.get("/admin/metrics/{gateway}", clients=clients)
        row_query = {"table": delta.table, "rowId": delta.row_id}
        explained = {
            # `user_of`: an import writes under a client id of its own, for the client that it names
            client: remote.get("/admin/explain/{gateway}", clientId=client, **row_query)
            for client in dict.fromkeys([user_of(delta.client_id), *(each["clientId"] for each in metrics["clients"])])
        }
    except LakeSyncError as error:
        return None, str(error)
    row = next(iter(explained.values()))["row"]
    owned = [each["column"] for each in row["columns"] if each["deltaId"] == delta.delta_id]
    checkpoint = metrics["checkpoint"]
    return {
        "ownsColumns": owned,
        "rowVisible": row["visible"],
        "inCheckpoint": None if checkpoint is None else int(checkpoint["arrivalHlc"]) >= delta.arrival_hlc,
        "clients": [
            {"clientId": client, "verdict": each["verdict"], "why": each["reasons"][0] if each["reasons"] else ""}
            for client, each in explained.items()
        ],
    }, None


def _print_trace(delta: TracedDelta, holders: dict[str, Any] | None) -> None:
    """Print the lines of the trace, and a table of the clients."""
    output.fields(dict(_steps(delta, holders)), as_json=False)
    if holders is not None:
        print()
        output.records(
            holders["clients"],
            as_json=False,
            columns=("clientId=client", "verdict=row", "why"),
            none="the gateway knows no clients",
        )


def _steps(delta: TracedDelta, holders: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of the trace, each as a heading and a text; `holders` is the first result of `_holders`."""
    from lakesync.staging.head import MAIN_SHARD

    columns = f"{delta.columns} column" + ("" if delta.columns == 1 else "s")
    yield "delta", delta.delta_id
    written = output.utc_time(wall_of(delta.hlc))
    yield "client", f"{delta.client_id} wrote {delta.op} of {delta.table}/{delta.row_id}, {columns}, at {written}"
    shard = "" if delta.shard == MAIN_SHARD else f", shard {delta.shard}"
    arrived = output.utc_time(wall_of(delta.arrival_hlc))
    position = f"arrival {delta.arrival_hlc}, sequence {delta.seq}, position {delta.ordinal}"
    yield "commit", f"gateway {delta.gateway}{shard}, {arrived}, {position}"
    yield "batch", delta.batch_id or "not flushed yet"
    if delta.snapshot is not None:
        when = output.utc_time(delta.snapshot.committed_ms) or "expired"
        yield "snapshot", f"{delta.snapshot.snapshot_id} of deltas, {when}"
    if delta.state is not None:
        merged = output.utc_time(wall_of(delta.state.merged_hlc)) if delta.state.merged_hlc else "never"
        yield "table", f"merged: {'yes' if delta.state.contains_delta else 'not yet'} (up to {merged})"
    elif delta.batch_id is not None:
        yield "table", "there is no state table"
    if holders is not None:
        owned = ", ".join(holders["ownsColumns"])
        yield "owns", owned or ("nothing: newer values or a tombstone replaced it" if delta.columns else "-")
        yield (
            "checkpoint",
            {None: "none yet", True: "in the newest one"}.get(holders["inCheckpoint"], "not in the newest one"),
        )
