"""`lakesync explain`, `row history` and `trace`: commands about one row or one delta (a change of a row).

- `explain` shows why a client sees a row or does not. The gateway computes that from the sync rules, the client's
  claims (what its token says about the user), and what it has sent to the client.
- `row history` shows every delta of a row, and what became of each value that it wrote.
- `trace` follows a delta: from its commit in the gateway's log, by the flush into the lake, to its table, the newest
  checkpoint (the snapshot of all rows from which new clients start), and the clients that have the row.

`lakesync.analysis` finds deltas in the lake and in the log. The gateway knows the clients.

A parameter `options: ConnectionOptions` adds the options that choose gateway and token, from `--url` to `--data`. A
gateway is one app's stream of deltas; `{gateway}` in the path of a request is its id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.commands import (
    ConnectionOptions,
    Data,
    Json,
    RowId,
    RowTable,
    command_app,
    complete_gateways,
    examples,
    load_settings,
    parse_claims,
)
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import wall_of

if TYPE_CHECKING:
    from rich.text import Text

    from lakesync.analysis.provenance import DeltaProvenance
    from lakesync.analysis.trace import TracedDelta
    from lakesync.cli.connection import GatewayConnection

explain_app, trace_app = command_app(), command_app()
row_app = command_app(
    "Inspect one row of the lake.", examples(("lakesync row history orders 4711", "every delta and its outcome"))
)

_STYLES = {"live": "green", "replaced": "dim", "lost": "red", "deleted": "red", "repeated": "dim"}
"""Outcome of a value that a delta wrote → its style in the terminal. `lakesync.analysis.provenance` defines them."""


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
        str | None, typer.Option("--as", metavar="CLAIMS", help="Claims: JSON, @FILE, or NAME=VALUE,NAME=VALUE.")
    ] = None,
    client: Annotated[str | None, typer.Option("--client", "-c", help="The client; default: sub of --as.")] = None,
    *,
    options: ConnectionOptions,
    as_json: Json = False,
) -> None:
    """Explain why a client sees a row or does not.

    Shows each clause of the sync rules. The verdict is absent, deleted, hidden, waiting (the next pull returns the
    row) or delivered.
    """
    parsed_claims = parse_claims(claims)
    client_id = client or (parsed_claims or {}).get("sub")
    if not isinstance(client_id, str):
        raise typer.BadParameter("no client is given; give --client ID, or a sub in --as")
    explanation = options.connect().get(
        "/admin/explain/{gateway}",
        clientId=client_id,
        table=table,
        rowId=row,
        claims=None if parsed_claims is None else json.dumps(parsed_claims),
    )
    if as_json:
        output.print_json(explanation)
        return
    print(f"{explanation['verdict']}: {explanation['reasons'][0] if explanation['reasons'] else ''}")
    for reason in explanation["reasons"][1:]:
        print(f"  {reason}")
    if explanation["row"]["visible"]:  # no clause matches a row that was deleted or never existed
        _print_details(explanation)


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
            "--gateway", "-g", help="Search only this gateway; default: all.", autocompletion=complete_gateways
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
            output.print_json(delta)
        return
    _print_deltas(deltas)


@trace_app.command(
    epilog=examples(
        ("lakesync trace 3f0d2ad02d76", "8 characters of the id are enough"),
        ("lakesync row history todos t1 --json | jq -r .delta_id", "find delta ids"),
    )
)
def trace(
    delta: Annotated[str, typer.Argument(metavar="DELTA", help="The delta's id, or at least its first 8 characters.")],
    clients: Annotated[int, typer.Option(help="Clients to check at most.", min=0, max=1000)] = 50,
    *,
    options: ConnectionOptions,
    as_json: Json = False,
) -> None:
    """Trace a delta through commit, flush, lake and clients.

    Shows commit, flush batch, snapshot, state table and checkpoint from the log and the lake, and the clients that
    have the row from the gateway. Exits with 6 if the gateway does not answer.
    """
    import msgspec

    from lakesync.analysis.trace import trace as traced

    in_gateway, problem = None, ""
    with output.spinner("searching"):
        traced_delta = traced(options.settings, delta, options.gateway)
        if clients > 0:
            try:
                remote = options.connect(gateway=traced_delta.gateway)
                in_gateway = _in_gateway(remote, traced_delta, clients)
            except LakeSyncError as error:
                problem = str(error)
    if as_json:
        unanswered = {"unanswered": problem} if problem else {}
        output.print_json({**msgspec.to_builtins(traced_delta), "holders": in_gateway, **unanswered})
    else:
        _print_trace(traced_delta, in_gateway)
    exit_codes.exit_if_incomplete([f"clients with the row: {problem}"] if problem else [], as_json=as_json)


def _print_details(explanation: dict[str, Any]) -> None:
    """Print a table of the rules' clauses, and one of the row's columns with the deltas that wrote them."""
    if explanation["buckets"]:
        print()
    output.print_rows(
        _clauses(explanation),
        as_json=False,
        columns=("bucket", "clause", "row", "compared=compared with", "result"),
        if_empty="the gateway has no sync rules, so every client sees every row",
    )
    print()
    output.print_rows(
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
        # contested: a push with an older value lost to it
        columns=("column", "clientId=written by", "written", "touched=changed or contested", "delta"),
        if_empty="the row has no values",
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
        output.print_table(("arrived", "written", "client", "op", "outcome"), rows)


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


def _in_gateway(remote: GatewayConnection, delta: TracedDelta, max_clients: int) -> dict[str, Any]:
    """Ask the gateway which columns still have the delta's values, and which of its clients have the row.

    Args:
        remote: the delta's gateway.
        delta: the traced delta.
        max_clients: number of clients to check, at most, besides the one that wrote the delta.

    Returns:
        The object `holders` of the JSON output, which has every client that was checked, with its verdict.

    Raises:
        LakeSyncError: the gateway does not answer.
    """
    from lakesync.model.validation import user_of

    metrics = remote.get("/admin/metrics/{gateway}", clients=max_clients)
    writer = user_of(delta.client_id)  # the client that an import is for, although its deltas have another client id
    explained = {
        client: remote.get("/admin/explain/{gateway}", clientId=client, table=delta.table, rowId=delta.row_id)
        for client in dict.fromkeys([writer, *(each["clientId"] for each in metrics["clients"])])
    }
    row = explained[writer]["row"]
    owned = [each["column"] for each in row["columns"] if each["deltaId"] == delta.delta_id]
    checkpoint = metrics["checkpoint"]
    return {
        "ownsColumns": owned,
        "rowVisible": row["visible"],
        "inCheckpoint": None if checkpoint is None else int(checkpoint["arrivalHlc"]) >= delta.arrival_hlc,
        "clients": [
            {"clientId": client, "verdict": each["verdict"], "why": _why(each)} for client, each in explained.items()
        ],
    }


def _why(explanation: Mapping[str, Any]) -> str:
    """Return the reason that says most: if the rules hide the row, which filter does, else the first one."""
    reasons = explanation["reasons"] or [""]
    if explanation["verdict"] == "hidden" and explanation["client"]["claimsFrom"] != "client id":
        by_filter = (
            reason for bucket in explanation["buckets"] if bucket["coversTable"] for reason in bucket["reasons"]
        )
        return str(next(by_filter, reasons[0]))
    return str(reasons[0])


def _print_trace(delta: TracedDelta, in_gateway: dict[str, Any] | None) -> None:
    """Print the lines of the trace, and a table of the clients; `in_gateway` is None if it is not known."""
    output.print_fields(dict(_steps(delta, in_gateway)), as_json=False)
    if in_gateway is not None:
        print()
        output.print_rows(
            in_gateway["clients"],
            as_json=False,
            columns=("clientId=client", "verdict=row", "why"),
            if_empty="the gateway knows no clients",
        )


def _steps(delta: TracedDelta, in_gateway: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of the trace, each as a heading and a text; `in_gateway` is the result of `_in_gateway`."""
    from lakesync.staging.head import MAIN_SHARD

    columns = output.count(delta.columns, "column")
    yield "delta", delta.delta_id
    written = output.utc_time(wall_of(delta.hlc))
    yield "client", f"{delta.client_id} wrote {delta.op} of {delta.table}/{delta.row_id}, {columns}, at {written}"
    shard = "" if delta.shard == MAIN_SHARD else f", shard {delta.shard}"
    arrived = output.utc_time(wall_of(delta.arrival_hlc))
    # the push's number in the log, and the delta's in the push
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
    if in_gateway is not None:
        owned = ", ".join(in_gateway["ownsColumns"])
        yield "owns", owned or ("nothing: newer values or a tombstone replaced it" if delta.columns else "-")
        texts = {None: "none yet", True: "in the newest one", False: "not in the newest one"}
        yield "checkpoint", texts[in_gateway["inCheckpoint"]]
