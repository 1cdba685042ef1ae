"""`lakesync staging`: the store that gateways commit to, looked at and upgraded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from lakesync.cli.examples import examples
from lakesync.config import load

if TYPE_CHECKING:
    from lakesync.staging.versions import Status

app = typer.Typer(
    no_args_is_help=True,
    help="Look at the staging store, upgrade it, bring it back from the lake.",
    epilog=examples(
        ("lakesync staging status", "what is there, in words"),
        ("lakesync staging migrate", "after an upgrade of LakeSync"),
        ("lakesync staging rebuild --from-lake", "after the store was lost"),
    ),
)

Data = Annotated[Path | None, typer.Option("--data", help="The folder that keeps everything.", show_default=False)]
Url = Annotated[
    str | None,
    typer.Option("--staging", help="sqlite:///ABSOLUTE/FOLDER or postgresql://…", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]


@app.command(
    epilog=examples(
        ("lakesync staging status", "the store of lakesync.toml"),
        ("lakesync staging status --staging postgresql://user:password@host/db --json", "another, for a program"),
    )
)
def status(staging: Url = None, data: Data = None, *, as_json: Json = False) -> None:
    """Show schema versions, bytes, and each gateway's head; the store may be in use."""
    from lakesync.staging import versions

    found = versions.status(store_url(staging, data))
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        _show(found)


@app.command(
    epilog=examples(
        ("lakesync staging migrate", "the store of lakesync.toml"),
        ("lakesync staging migrate --data /var/lib/lakesync", "the one in that folder"),
    )
)
def migrate(staging: Url = None, data: Data = None, *, as_json: Json = False) -> None:
    """Upgrade the store's schema in place; what it holds stays. A gateway does the same when it starts.

    On SQLite the gateway must be stopped. A store that a newer LakeSync wrote is refused and left as it is.
    """
    from lakesync.staging import versions

    done = versions.upgrade(store_url(staging, data))
    if as_json:
        print(msgspec.json.encode(done).decode())
        return
    for each in done:
        change = f"{each.before} → {each.after}" if each.before != each.after else f"{each.after}, nothing to do"
        print(f"{each.database}: schema version {change}")


@app.command(
    epilog=examples(
        ("lakesync staging rebuild --from-lake", "after the store was lost"),
        ("lakesync staging rebuild --from-lake --replace", "where a backup was put back, or it is damaged"),
    )
)
def rebuild(
    staging: Url = None,
    data: Data = None,
    *,
    from_lake: Annotated[bool, typer.Option("--from-lake", help="Read the Iceberg tables; the one source there is.")],
    replace: Annotated[bool, typer.Option("--replace", help="Set a store that is there aside.")] = False,
    margin_seconds: Annotated[float, typer.Option(help="How far above the clock arrivals go on.", min=0)] = 60.0,
    as_json: Json = False,
) -> None:
    """Make the store again from the lake: rows, ids, the ledger, schemas and rules, under a new epoch.

    Stop gateways and pipeline first. What was acknowledged and never reached the lake is lost with the old store;
    clients that still have such deltas may push them again. Connectors and actions are not in the lake.
    """
    from lakesync.cli.staging_rebuild import run

    if not from_lake:
        raise typer.BadParameter("write --from-lake: the lake is the one source there is")
    run(
        load({"data_dir": data} if data else {}),
        store_url(staging, data),
        replace=replace,
        margin_ms=round(margin_seconds * 1000),
        as_json=as_json,
    )


def store_url(staging: str | None, data: Path | None) -> str:
    """The store that the options name, else the configuration's."""
    if staging:
        return staging
    return load({"data_dir": data} if data else {}).staging.url


def _show(found: Status) -> None:
    print(f"{found.url}  {found.bytes:,} bytes")
    for schema in found.schemas:
        note = "" if schema.version == schema.newest else f" (this LakeSync knows {schema.newest})"
        print(f"{schema.database}: schema version {schema.version}{note}")
    for head in found.heads:
        print(
            f"gateway {head.gateway} shard {head.shard}: epoch {head.epoch}, arrival {head.arrival}, "
            f"log rows {head.last_seq}, in the lake {head.flushed_seq}, trimmed {head.trimmed_seq}, "
            f"{head.deltas} deltas of {head.bytes:,} bytes wait"
        )
