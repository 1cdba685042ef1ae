"""`lakesync trace`: traces a delta (a change of one row) from its client to the tables and clients that have it.

`lakesync.analysis.tracing` finds it in the gateway's log and in the lake; this module adds the clients and prints.
"""

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
    from lakesync.model.errors import LakeSyncError
    from lakesync.model.validation import user_of

    try:
        remote = connect(url, delta.gateway, token_file, data)
        metrics = remote.get("/admin/metrics/{gateway}", clients=clients)
        row_query = {"table": delta.table, "rowId": delta.row_id}
        explained = {
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
    from lakesync.model.hlc import wall_of

    columns = f"{delta.columns} column" + ("" if delta.columns == 1 else "s")
    yield "delta", delta.delta_id
    written = output.utc_time(wall_of(delta.hlc))
    yield "client", f"{delta.client_id} wrote {delta.op} of {delta.table}/{delta.row_id}, {columns}, at {written}"
    shard = "" if delta.shard == "main" else f", shard {delta.shard}"
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
