"""`lakesync migrate`: copies deltas from one adapter to another and verifies the copy.

The progress is stored in a file of the data folder, named by a hash of the source, the target and the selected deltas,
so that the same command continues an interrupted copy.
"""

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
from lakesync.cli.options import Data, Json, load_settings
from lakesync.model import hlc
from lakesync.model.errors import ConfigurationError, LakeSyncError
from lakesync.model.secrets import REFERENCE_PREFIXES, read_reference

app = command_app()

_DAY = "%Y-%m-%d"


@app.command(
    epilog=examples(
        ("lakesync migrate --from sqlite:///var/lib/old.db --to env:NEW_URI", "all deltas"),
        (
            "lakesync migrate --from file:///objects --to postgresql://host/db --table orders --dry-run",
            "compare without copying",
        ),
    )
)
def migrate(
    source: Annotated[
        str, typer.Option("--from", help="URI of the source adapter, or a reference: env:NAME, file:PATH.")
    ],
    destination: Annotated[str, typer.Option("--to", help="URI of the target adapter, or a reference.")],
    gateway: Annotated[
        str | None, typer.Option(help="Copy only this gateway; default: all.", show_default=False)
    ] = None,
    table: Annotated[list[str] | None, typer.Option(help="Copy only this table; may be repeated.")] = None,
    since: Annotated[
        datetime | None, typer.Option(formats=[_DAY], help="First day to copy (UTC, by hlc); default: all.")
    ] = None,
    until: Annotated[datetime | None, typer.Option(formats=[_DAY], help="Last day to copy; default: all.")] = None,
    page: Annotated[int, typer.Option(min=1, help="Deltas per page.")] = 10_000,
    data: Data = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare both sides and write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Copy deltas from one adapter to another and verify the copy.

    Compares count and checksum at the end. The source is not changed. Repeat the same command to resume an interrupted
    copy.
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
    uris = [_resolved("--from", source), _resolved("--to", destination)]
    copy_id = hashlib.sha256(msgspec.json.encode([*uris, scope])).hexdigest()[:16]  # the same command resumes its copy
    if (missing := _missing_path(uris[0])) is not None:
        raise ConfigurationError(f"--from is {missing}, which does not exist; give the path of existing data")
    folder = load_settings(data).data_dir / "migrations"
    with ExitStack() as closing:
        source_adapter = as_database(open_adapter(uris[0]))
        closing.callback(source_adapter.close)
        if dry_run and _missing_path(uris[1]) is not None:
            at_source = scope_checksum(source_adapter, scope)
            comparison = {"source": at_source.deltas, "destination": 0, "equal": at_source == BatchChecksum(0, 0)}
            _print_report(comparison, as_json=as_json)
            return
        target_adapter = as_database(open_adapter(uris[1]))
        closing.callback(target_adapter.close)
        if dry_run:
            at_source, at_target = scope_checksum(source_adapter, scope), scope_checksum(target_adapter, scope)
            comparison = {"source": at_source.deltas, "destination": at_target.deltas, "equal": at_source == at_target}
            _print_report(comparison, as_json=as_json)
            return
        progress = MigrationInFile(folder / f"{copy_id}.json")
        try:
            report = migrate_adapter(
                source_adapter,
                target_adapter,
                scope,
                progress=progress,
                page=page,
                on_page=lambda at: print(f"{at.deltas} deltas in {at.pages} pages", file=sys.stderr),
            )
        except LakeSyncError:
            if progress.path.exists():
                print("repeat the same command to resume", file=sys.stderr)
            raise
    _print_report(msgspec.to_builtins(report), as_json=as_json)


def _print_report(report: dict[str, Any], *, as_json: bool) -> None:
    """Print a report: a line of JSON, or a line for each field."""
    if as_json:
        output.record(report)
        return
    for name, value in report.items():
        print(f"{name.replace('_', ' ')}: {f'{value:.1f}' if isinstance(value, float) else value}")


def _resolved(option: str, uri: str) -> str:
    """Return a URI, or the one to which a reference (`env:NAME`, `file:PATH`) points; `option` is for messages."""
    is_reference = uri.startswith(REFERENCE_PREFIXES) and not uri.startswith("file://")  # `file://` is an adapter's URI
    return read_reference(option, uri, Path()) if is_reference else uri


def _missing_path(uri: str) -> Path | None:
    """Return the path of a local URI if it does not exist. Opening its adapter would create it."""
    parts = urlsplit(uri)
    path = Path("/", unquote(parts.path).lstrip("/"))
    return path if parts.scheme in ("file", "sqlite") and not path.exists() else None


def _hlc(day: datetime) -> int:
    """Return the first hlc of a UTC day."""
    return hlc.encode(int(datetime.combine(day.date(), time(), UTC).timestamp() * 1000), 0)
