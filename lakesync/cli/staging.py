"""`lakesync staging`: the store that gateways commit to, looked at and upgraded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from lakesync.cli.examples import examples
from lakesync.cli.lazy import command_app
from lakesync.cli.options import Data, Json, settings

if TYPE_CHECKING:
    from lakesync.staging.versions import Status

app = command_app(
    "Look at the staging store, upgrade it, bring it back from the lake.",
    examples(
        ("lakesync staging status", "what is there, in words"),
        ("lakesync staging migrate", "after an upgrade of LakeSync"),
        ("lakesync staging rebuild --from-lake", "after the store was lost"),
    ),
)

Url = Annotated[
    str | None,
    typer.Option("--staging", help="sqlite:///ABSOLUTE/FOLDER or postgresql://…", show_default=False),
]


@app.command(
    epilog=examples(
        ("lakesync staging status", "the store of lakesync.toml"),
        ("lakesync staging status --staging postgresql://user:password@host/db --json", "another, for a program"),
    )
)
def status(staging: Url = None, data: Data = None, *, as_json: Json = False) -> None:
    """Show schema versions, bytes, and each gateway's head; the store may be in use.

    Where tables have stores of their own, each of them.
    """
    from lakesync.cli.staging_places import urls
    from lakesync.staging import versions

    found = {shard: versions.status(url) for shard, url in urls(staging, data).items()}
    if as_json:
        print(msgspec.json.encode(found.get("", found)).decode())
        return
    for each in found.values():
        _show(each)


@app.command(
    epilog=examples(
        ("lakesync staging migrate", "the store of lakesync.toml"),
        ("lakesync staging migrate --data /var/lib/lakesync", "the one in that folder"),
    )
)
def migrate(staging: Url = None, data: Data = None, *, as_json: Json = False) -> None:
    """Upgrade the store's schema in place; what it holds stays. A gateway does the same when it starts.

    On SQLite the gateway must be stopped. A store that a newer LakeSync wrote is refused and left as it is. Where
    tables have stores of their own, all of them are upgraded, or none where any is refused.
    """
    from lakesync.cli.staging_places import urls
    from lakesync.staging import versions

    done = versions.upgrade_all(urls(staging, data))
    if as_json:
        print(msgspec.json.encode(done.get("", done)).decode())
        return
    for shard, upgrades in done.items():
        for each in upgrades:
            change = f"{each.before} → {each.after}" if each.before != each.after else f"{each.after}, nothing to do"
            print(f"{f'shard {shard}, ' if shard else ''}{each.database}: schema version {change}")


@app.command(
    epilog=examples(
        ("lakesync staging rebuild --from-lake", "after the store was lost"),
        ("lakesync staging rebuild --from-lake --replace", "where a backup was put back, or it is damaged"),
        ("lakesync staging rebuild --from-lake --shard shard-orders", "one shard's store alone"),
    )
)
def rebuild(
    staging: Url = None,
    data: Data = None,
    *,
    from_lake: Annotated[bool, typer.Option("--from-lake", help="Read the Iceberg tables; the one source there is.")],
    replace: Annotated[bool, typer.Option("--replace", help="Set a store that is there aside.")] = False,
    shard: Annotated[
        str | None, typer.Option("--shard", help="The one shard whose store is made again.", show_default=False)
    ] = None,
    margin_seconds: Annotated[float, typer.Option(help="How far above the clock arrivals go on.", min=0)] = 60.0,
    as_json: Json = False,
) -> None:
    """Make the store again from the lake: rows, ids, the ledger, schemas and rules, under a new epoch.

    Stop gateways and pipeline first. What was acknowledged and never reached the lake is lost with the old store;
    clients that still have such deltas may push them again. Connectors and actions are not in the lake. Where tables
    have stores of their own, all of them are made again, or with --shard one of them.
    """
    from lakesync.cli.staging_places import shards_of, urls
    from lakesync.cli.staging_rebuild import run

    if not from_lake:
        raise typer.BadParameter("write --from-lake: the lake is the one source there is")
    shards = shards_of(staging, data)
    if shard is not None and shards is None:
        raise typer.BadParameter("--shard names one of the stores of shard_config, and there is none")
    run(
        settings(data),
        next(iter(urls(staging, data).values())),
        shards=shards,
        only=shard,
        replace=replace,
        margin_ms=round(margin_seconds * 1000),
        as_json=as_json,
    )


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
