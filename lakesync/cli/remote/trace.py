"""`lakesync trace`: one delta's way, from its client to who holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url, settings

if TYPE_CHECKING:
    from pathlib import Path

    from lakesync.analysis.tracing import TracedDelta

app = command_app()


@app.command(
    epilog=examples(
        ("lakesync trace 3f0d2ad02d76", "the beginning of an id is enough"),
        ("lakesync row history todos t1 --json | jq -r .delta_id", "where ids are found"),
    )
)
def trace(
    delta: Annotated[
        str, typer.Argument(metavar="DELTA", help="The delta's id, or how it begins.", show_default=False)
    ],
    clients: Annotated[int, typer.Option(help="Most clients to ask about.", min=0, max=1000)] = 50,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Follow a delta: client, commit, flush batch, snapshot, and who holds it.

    Log and lake are read where the configuration says they are; clients are asked of the gateway. Without a gateway
    that answers, the rest is told, and the exit code is 6.
    """
    import msgspec

    from lakesync.analysis.tracing import trace as traced

    with output.working("looking for it"):
        found = traced(settings(data), delta, gateway)
        held, why = _holders(found, clients, url, token_file, data) if clients else (None, None)
    if as_json:
        output.record({**msgspec.to_builtins(found), "holders": held, **({"unanswered": why} if why else {})})
    else:
        _show(found, held)
    if why:
        raise typer.Exit(exit_codes.unanswered(f"who holds it: {why}", as_json=as_json))


def _holders(
    found: TracedDelta, clients: int, url: str | None, token_file: Path | None, data: Path | None
) -> tuple[dict[str, Any] | None, str | None]:
    """What the gateway says of the row and of each client that it saw; or why it does not."""
    from lakesync.cli.connection import connect
    from lakesync.model.client_ids import user_of
    from lakesync.model.errors import LakeSyncError

    try:
        remote = connect(url, found.gateway, token_file, data)
        told = remote.get("/admin/metrics/{gateway}", clients=clients)
        asked = {"table": found.table, "rowId": found.row_id}
        explained = {
            client: remote.get("/admin/explain/{gateway}", clientId=client, **asked)
            for client in dict.fromkeys([user_of(found.client_id), *(each["clientId"] for each in told["clients"])])
        }
    except LakeSyncError as error:
        return None, str(error)
    row = next(iter(explained.values()))["row"]
    owned = [each["column"] for each in row["columns"] if each["deltaId"] == found.delta_id]
    cut = told["cut"]
    return {
        "ownsColumns": owned,
        "rowVisible": row["visible"],
        "inCheckpoint": None if cut is None else int(cut["arrivalHlc"]) >= found.arrival_hlc,
        "clients": [
            {"clientId": client, "verdict": each["verdict"], "why": each["reasons"][0] if each["reasons"] else ""}
            for client, each in explained.items()
        ],
    }, None


def _show(found: TracedDelta, held: dict[str, Any] | None) -> None:
    output.facts(dict(_steps(found, held)), as_json=False)
    if held is not None:
        print()
        output.records(
            held["clients"], as_json=False, columns=("clientId=client", "verdict=row", "why"), none="no client was seen"
        )


def _steps(found: TracedDelta, held: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    from lakesync.model.hlc import wall_of

    columns = f"{found.columns} column" + ("" if found.columns == 1 else "s")
    yield "delta", found.delta_id
    written = output.moment(wall_of(found.hlc))
    yield "client", f"{found.client_id} wrote {found.op} of {found.table}/{found.row_id}, {columns}, at {written}"
    shard = "" if found.shard == "main" else f", shard {found.shard}"
    arrived = output.moment(wall_of(found.arrival_hlc))
    place = f"arrival {found.arrival_hlc}, push {found.seq}, place {found.ordinal}"
    yield "commit", f"gateway {found.gateway}{shard}, {arrived}, {place}"
    yield "batch", found.batch_id or "waits for the lake"
    if found.snapshot is not None:
        when = output.moment(found.snapshot.committed_ms) or "expired since"
        yield "snapshot", f"{found.snapshot.snapshot_id} of deltas, {when}"
    if found.state is not None:
        merged = output.moment(wall_of(found.state.merged_hlc)) if found.state.merged_hlc else "never"
        yield "table", f"merged: {'yes' if found.state.contains_delta else 'not yet'} (up to {merged})"
    elif found.batch_id is not None:
        yield "table", "there is no state table of it"
    if held is not None:
        owned = ", ".join(held["ownsColumns"])
        yield "owns", owned or ("nothing: newer values, or a tombstone, took its place" if found.columns else "-")
        yield (
            "checkpoint",
            {None: "there is none yet", True: "in the newest one"}.get(held["inCheckpoint"], "not in the newest one"),
        )
