"""`lakesync trace`: traces a delta from its client to the tables and clients that have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url, load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from lakesync.analysis.tracing import TracedDelta

app = command_app()


@app.command(
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

    from lakesync.analysis.tracing import trace as traced

    with output.spinner("searching"):
        found = traced(load_settings(data), delta, gateway)
        holders, why = _holders(found, clients, url, token_file, data) if clients else (None, None)
    if as_json:
        output.record({**msgspec.to_builtins(found), "holders": holders, **({"unanswered": why} if why else {})})
    else:
        _print_trace(found, holders)
    if why:
        raise typer.Exit(exit_codes.report_unanswered(f"clients with the row: {why}", as_json=as_json))


def _holders(
    found: TracedDelta, clients: int, url: str | None, token_file: Path | None, data: Path | None
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the gateway's answer about the row and each known client, or the reason why there is none."""
    from lakesync.cli.connection import connect
    from lakesync.model.errors import LakeSyncError
    from lakesync.model.validation import user_of

    try:
        remote = connect(url, found.gateway, token_file, data)
        metrics = remote.get("/admin/metrics/{gateway}", clients=clients)
        row_query = {"table": found.table, "rowId": found.row_id}
        explained = {
            client: remote.get("/admin/explain/{gateway}", clientId=client, **row_query)
            for client in dict.fromkeys([user_of(found.client_id), *(each["clientId"] for each in metrics["clients"])])
        }
    except LakeSyncError as error:
        return None, str(error)
    row = next(iter(explained.values()))["row"]
    owned = [each["column"] for each in row["columns"] if each["deltaId"] == found.delta_id]
    checkpoint = metrics["checkpoint"]
    return {
        "ownsColumns": owned,
        "rowVisible": row["visible"],
        "inCheckpoint": None if checkpoint is None else int(checkpoint["arrivalHlc"]) >= found.arrival_hlc,
        "clients": [
            {"clientId": client, "verdict": each["verdict"], "why": each["reasons"][0] if each["reasons"] else ""}
            for client, each in explained.items()
        ],
    }, None


def _print_trace(found: TracedDelta, holders: dict[str, Any] | None) -> None:
    output.fields(dict(_steps(found, holders)), as_json=False)
    if holders is not None:
        print()
        output.records(
            holders["clients"],
            as_json=False,
            columns=("clientId=client", "verdict=row", "why"),
            none="the gateway knows no clients",
        )


def _steps(found: TracedDelta, holders: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    from lakesync.model.hlc import wall_of

    columns = f"{found.columns} column" + ("" if found.columns == 1 else "s")
    yield "delta", found.delta_id
    written = output.utc_time(wall_of(found.hlc))
    yield "client", f"{found.client_id} wrote {found.op} of {found.table}/{found.row_id}, {columns}, at {written}"
    shard = "" if found.shard == "main" else f", shard {found.shard}"
    arrived = output.utc_time(wall_of(found.arrival_hlc))
    position = f"arrival {found.arrival_hlc}, sequence {found.seq}, position {found.ordinal}"
    yield "commit", f"gateway {found.gateway}{shard}, {arrived}, {position}"
    yield "batch", found.batch_id or "not flushed yet"
    if found.snapshot is not None:
        when = output.utc_time(found.snapshot.committed_ms) or "expired"
        yield "snapshot", f"{found.snapshot.snapshot_id} of deltas, {when}"
    if found.state is not None:
        merged = output.utc_time(wall_of(found.state.merged_hlc)) if found.state.merged_hlc else "never"
        yield "table", f"merged: {'yes' if found.state.contains_delta else 'not yet'} (up to {merged})"
    elif found.batch_id is not None:
        yield "table", "there is no state table"
    if holders is not None:
        owned = ", ".join(holders["ownsColumns"])
        yield "owns", owned or ("nothing: newer values or a tombstone replaced it" if found.columns else "-")
        yield (
            "checkpoint",
            {None: "none yet", True: "in the newest one"}.get(holders["inCheckpoint"], "not in the newest one"),
        )
