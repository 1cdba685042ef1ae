"""`lakesync migrate`: all deltas of one adapter to another, or some of them."""

from __future__ import annotations

import hashlib
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import msgspec
import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json, settings
from lakesync.model import hlc
from lakesync.model.errors import ConfigurationError, LakeSyncError
from lakesync.model.secret_references import KINDS, follow

app = command_app()

_DAY = "%Y-%m-%d"


@app.command(
    epilog=examples(
        ("lakesync migrate --from sqlite:///var/lib/old.db --to env:NEW_URI", "all of it"),
        ("lakesync migrate --from file:///objects --to postgresql://host/db --table orders --dry-run", "what there is"),
    )
)
def migrate(
    source: Annotated[
        str, typer.Option("--from", help="The adapter's URI, or a reference to it: env:NAME, file:PATH.")
    ],
    destination: Annotated[str, typer.Option("--to", help="The other adapter's.")],
    gateway: Annotated[str | None, typer.Option(help="Only this gateway's deltas.", show_default=False)] = None,
    table: Annotated[list[str] | None, typer.Option(help="Only this table's; may be repeated.")] = None,
    since: Annotated[
        datetime | None, typer.Option(formats=[_DAY], help="Only of this day (UTC, by hlc) and later.")
    ] = None,
    until: Annotated[datetime | None, typer.Option(formats=[_DAY], help="Only of this day and earlier.")] = None,
    page: Annotated[int, typer.Option(min=1, help="Deltas that are moved at once.")] = 10_000,
    data: Data = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count on both sides, and write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Copy deltas from one adapter to another, and compare count and checksum at the end. The source is only read.

    A run that was killed goes on where it was when the same command is given again.
    """
    from lakesync.adapters import as_database, open_adapter
    from lakesync.adapters.deltas import BatchChecksum
    from lakesync.adapters.transfer.migration import MigrationInFile, MigrationScope, migrate_adapter, scope_checksum

    scope = MigrationScope(
        gateway,
        tuple(table or ()),
        _hlc(since) - 1 if since is not None else -1,
        _hlc(until + timedelta(days=1)) - 1 if until is not None else None,
    )
    uris = [_followed("--from", source), _followed("--to", destination)]
    named = hashlib.sha256(msgspec.json.encode([*uris, scope])).hexdigest()[:16]
    if (absent := _absent(uris[0])) is not None:
        raise ConfigurationError(f"--from names {absent}, which is not there: give the path of what is to be moved")
    folder = settings(data).data_dir / "migrations"
    with ExitStack() as closing:
        old = as_database(open_adapter(uris[0]))
        closing.callback(old.close)
        if dry_run and _absent(uris[1]) is not None:
            theirs = scope_checksum(old, scope)
            _tell({"source": theirs.deltas, "destination": 0, "equal": theirs == BatchChecksum(0, 0)}, as_json=as_json)
            return
        new = as_database(open_adapter(uris[1]))
        closing.callback(new.close)
        if dry_run:
            theirs, ours = scope_checksum(old, scope), scope_checksum(new, scope)
            _tell({"source": theirs.deltas, "destination": ours.deltas, "equal": theirs == ours}, as_json=as_json)
            return
        progress = MigrationInFile(folder / f"{named}.json")
        try:
            report = migrate_adapter(
                old,
                new,
                scope,
                progress=progress,
                page=page,
                on_page=lambda at: print(f"{at.deltas} deltas in {at.pages} pages", file=sys.stderr),
            )
        except LakeSyncError:
            if progress.path.exists():
                print("give the same command again to go on where this ended", file=sys.stderr)
            raise
    _tell(msgspec.to_builtins(report), as_json=as_json)


def _tell(report: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.record(report)
        return
    for name, value in report.items():
        print(f"{name.replace('_', ' ')}: {f'{value:.1f}' if isinstance(value, float) else value}")


def _followed(option: str, uri: str) -> str:
    refers = uri.startswith(KINDS) and not uri.startswith("file://")  # that is an adapter's own
    return follow(option, uri, Path()) if refers else uri


def _absent(uri: str) -> Path | None:
    """A file or folder of this machine that is not there; to open its adapter would make it."""
    parts = urlsplit(uri)
    place = Path("/", unquote(parts.path).lstrip("/"))
    return place if parts.scheme in ("file", "sqlite") and not place.exists() else None


def _hlc(day: datetime) -> int:
    """The first of a UTC day."""
    return hlc.encode(int(datetime.combine(day.date(), time(), UTC).timestamp() * 1000), 0)
