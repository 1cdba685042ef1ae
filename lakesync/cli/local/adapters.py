"""`lakesync migrate` and `lakesync materialise`: commands that work on adapters, without a gateway or a pipeline.

An adapter keeps deltas (changes of rows) in a database or an object store. A database also has *destination tables*
with the current rows. The *hlc* of a delta is the timestamp by the clock of the client that wrote it.

`migrate` copies deltas from one adapter to another and verifies the copy. It stores its progress in a file of the data
folder, named by a hash of the source, the target and the selected deltas, so that the same command continues an
interrupted copy.

Without a pipeline, a gateway itself copies deltas from its log to an adapter (`lakesync gateway --flush-to`). This is a
flush. With `[flush] queue` it does not update destination tables, but puts a job for each into that queue.
`materialise` runs the jobs.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import ExitStack, closing
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lakesync.cli import output
from lakesync.cli.commands import Data, Json, command_app, examples, load_settings
from lakesync.model.errors import ConfigurationError, LakeSyncError, TransientError
from lakesync.model.hlc import start_of
from lakesync.model.secrets import REFERENCE_PREFIXES, read_reference

if TYPE_CHECKING:
    from lakesync.adapters import DatabaseAdapter
    from lakesync.adapters.transfer.migration import MigrationScope

migrate_app, materialise_app = command_app(), command_app()

_DAY = "%Y-%m-%d"
"""The form of the options `--since` and `--until`."""
_POLL_SECONDS = 2.0
"""Seconds between two reads of the queue by `materialise`."""


@migrate_app.command(
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
    gateway: Annotated[str | None, typer.Option(help="Copy only this gateway; default: all.")] = None,
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
    from lakesync.adapters.transfer.migration import MigrationInFile, MigrationScope, migrate_adapter
    from lakesync.engine.standalone_engine import log_to_stderr

    log_to_stderr()
    scope = MigrationScope(
        gateway,
        tuple(table or ()),
        since=_first_hlc(since) - 1 if since is not None else -1,  # only greater hlcs are copied: with -1, all
        until=_first_hlc(until + timedelta(days=1)) - 1 if until is not None else None,
    )
    source_uri, target_uri = _resolve_reference("--from", source), _resolve_reference("--to", destination)
    if (missing := _missing_path(source_uri)) is not None:
        raise ConfigurationError(f"--from is {missing}, which does not exist; give the path of existing data")
    copy_id = hashlib.sha256(msgspec.json.encode([source_uri, target_uri, scope])).hexdigest()[:16]
    folder = load_settings(data).data_dir / "migrations"
    with closing(as_database(open_adapter(source_uri))) as source_adapter:
        if dry_run:
            _print_report(_compare(source_adapter, target_uri, scope), as_json=as_json)
            return
        progress = MigrationInFile(folder / f"{copy_id}.json")
        with closing(as_database(open_adapter(target_uri))) as target_adapter:
            try:
                report = migrate_adapter(
                    source_adapter,
                    target_adapter,
                    scope,
                    progress=progress,
                    page=page,
                    on_page=lambda done: output.note(
                        f"{output.count(done.deltas, 'delta')} in {output.count(done.pages, 'page')}"
                    ),
                )
            except LakeSyncError:
                if progress.path.exists():
                    output.note("repeat the same command to resume")
                raise
    _print_report(msgspec.to_builtins(report), as_json=as_json)


@materialise_app.command(
    epilog=examples(
        ("lakesync materialise", "until Ctrl-C or SIGTERM"),
        ("lakesync materialise --once", "empty the queue and exit, from a timer"),
    )
)
def materialise(
    data: Data = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Exit when the queue is empty.")] = False,
    as_json: Json = False,
) -> None:
    """Update destination tables from a flush queue.

    Consumes [flush] queue, into which gateways write the work that follows their flushes.
    """
    from lakesync.cli.up.process import stop_event

    job_count = _process_queue(data, stop_event(), once=once)
    output.print_fields({"done": job_count}, as_json=as_json)


def _compare(source: DatabaseAdapter, target_uri: str, scope: MigrationScope) -> dict[str, Any]:
    """Return the number of selected deltas on both sides, and whether they are equal. A missing target is empty."""
    from lakesync.adapters import as_database, open_adapter
    from lakesync.adapters.deltas import BatchChecksum
    from lakesync.adapters.transfer.migration import scope_checksum

    at_source, at_target = scope_checksum(source, scope), BatchChecksum(0, 0)
    if _missing_path(target_uri) is None:
        with closing(as_database(open_adapter(target_uri))) as target:
            at_target = scope_checksum(target, scope)
    return {"source": at_source.deltas, "destination": at_target.deltas, "equal": at_source == at_target}


def _print_report(report: dict[str, Any], *, as_json: bool) -> None:
    """Print a report: a line of JSON, or a line for each field."""
    if as_json:
        output.print_json(report)
        return
    for name, value in report.items():
        print(f"{name.replace('_', ' ')}: {f'{value:.1f}' if isinstance(value, float) else value}")


def _resolve_reference(option: str, uri: str) -> str:
    """Return a URI, or the one to which a reference (`env:NAME`, `file:PATH`) points; `option` is for messages."""
    is_reference = uri.startswith(REFERENCE_PREFIXES) and not uri.startswith("file://")  # `file://` is an adapter's URI
    return read_reference(option, uri, Path()) if is_reference else uri


def _missing_path(uri: str) -> Path | None:
    """Return the path of a local URI if it does not exist. Opening its adapter would create it."""
    from lakesync.adapters.uri import path_of

    path = path_of(uri) if uri.startswith(("file:", "sqlite:")) else None
    return path if path is not None and not path.exists() else None


def _first_hlc(day: datetime) -> int:
    """Return the first hlc of a UTC day."""
    return start_of(int(datetime.combine(day.date(), time(), UTC).timestamp() * 1000))


def _process_queue(data: Path | None, stop: threading.Event, *, once: bool) -> int:
    """Process the jobs of the queue; without `once` it tries again if the queue or the adapter cannot be reached.

    Args:
        data: the data folder (`--data`); None for that of the settings.
        stop: when it is set, the function returns after the current pass over the queue.
        once: whether to return when the queue is empty.

    Returns:
        The number of processed jobs.

    Raises:
        ConfigurationError: no queue is configured, or the adapter has no tables to update.
        TransientError: with `once`, the queue or the adapter cannot be reached.
    """
    from lakesync.adapters import open_adapter
    from lakesync.adapters.base import Materialisable
    from lakesync.adapters.registry import as_database
    from lakesync.engine.standalone_engine import log_to_stderr
    from lakesync.flush import Materialiser, open_object_queue

    log_to_stderr()
    flush = load_settings(data).flush
    if not flush.queue or not flush.to_uri:
        raise ConfigurationError(
            "[flush] queue or to_uri is not set; without a queue the gateway updates the tables itself"
        )
    job_count = 0
    with ExitStack() as opening:
        adapter = open_adapter(flush.to_uri)
        opening.callback(adapter.close)
        destination = as_database(adapter, flush.format)
        if not isinstance(destination, Materialisable):
            raise ConfigurationError(
                f"{flush.to_uri.partition(':')[0]} does not keep tables of rows, so there is nothing to update"
            )
        queue = open_object_queue(flush.queue, opening)
        while not stop.is_set():
            try:
                for gateway in queue.gateways():
                    job_count += Materialiser(gateway, queue, destination).run_once()
            except TransientError as error:
                if once:
                    raise
                output.note(f"the queue or the adapter cannot be reached, retrying: {error}")
            if once:
                break
            stop.wait(_POLL_SECONDS)
    return job_count
