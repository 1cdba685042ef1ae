"""Migrates deltas (changes of rows) from one adapter to another: in order of hlc, page by page, verified at the end.

An adapter is a database or object store. A delta's *hlc* is its client's timestamp. The *scope* of a migration says
which gateway (an app's stream of deltas), tables and hlcs it copies. `lakesync migrate` and the pipeline
(`[migrations.NAME]` in `lakesync.toml`) call `migrate_adapter`. Progress is stored after each page but the last, in a
file or in a *mark*, a named text at the destination. So a killed migration continues after the last stored page. The
page after that may be written twice, which changes nothing.

The pipeline divides a large migration, or a large transfer of old deltas to another adapter (a *cold tier*), into
ranges of hlcs, one task each: `begin_division`, `end_division`. The division is stored until every range is done,
because a killed transfer must continue in the same ranges. Then a page that it repeats equals the page that was written
before, and the target recognises it by its batch id.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from lakesync.adapters.arrow import table_checksum
from lakesync.adapters.arrow_access import copy_page, read_pages, split_points
from lakesync.adapters.base import DatabaseAdapter, MarkStore
from lakesync.adapters.deltas import PAGE_DELTAS, BatchChecksum, DeltaQuery
from lakesync.adapters.transfer.progress import ProgressInFile, ProgressInMark, ProgressStore
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import ConfigurationError, IntegrityError
from lakesync.model.types import Position


class MigrationScope(msgspec.Struct, frozen=True):
    """The deltas to migrate: those that fulfil all conditions."""

    gateway: str | None = None
    """None selects every gateway."""
    tables: tuple[str, ...] = ()
    """Empty selects every table."""
    since: int = -1
    """Exclusive lower bound on the hlc."""
    until: int | None = None
    """Inclusive upper bound on the hlc."""

    def query(self, limit: int) -> DeltaQuery:
        """Return the query for the scope's deltas, in hlc order and `limit` per page."""
        return DeltaQuery("hlc", self.since, self.until, gateway=self.gateway, tables=self.tables, limit=limit)


class MigrationProgress(msgspec.Struct, frozen=True):
    """A migration's progress."""

    scope: MigrationScope
    after: Position | None = None
    """Everything up to this position is at the destination."""
    deltas: int = 0
    """Deltas copied, by all runs; likewise `id_sum` and `pages`."""
    id_sum: int = 0
    """Sum of their ids as numbers, modulo 2**64, by which two copies are compared."""
    pages: int = 0
    division: str = ""
    """The id of the `Division` that this range belongs to; empty if the migration is not divided."""
    verified: bool = False
    """Whether the range is copied and verified, waiting for the other ranges."""


class MigrationReport(msgspec.Struct, frozen=True):
    """The result of a migration."""

    deltas: int
    """Deltas of the scope at the destination, from this run and earlier ones."""
    copied: int
    """Deltas copied by this run."""
    pages: int
    """Pages copied, from this run and earlier ones."""
    id_sum: int
    """Sum of the ids of all `deltas`, as in `MigrationProgress`."""
    seconds: float
    verified: bool
    """Always true: source and destination were read again, and a difference raises an error."""


class MigrationStore:
    """Stores a migration's progress for the next run: a `MigrationInMark` or a `MigrationInFile`."""

    def __init__(self, stored: ProgressStore[MigrationProgress], division: str) -> None:
        """Choose where the progress is stored.

        Args:
            stored: a mark or a file.
            division: the id of the division that the range belongs to; empty if the migration is not divided.
        """
        self._stored = stored
        self._division = division

    def read(self, scope: MigrationScope) -> MigrationProgress:
        """Return the progress of a migration of this scope; that of a new one if none is stored.

        Raises:
            IntegrityError, ConfigurationError: the mark or file belongs to other work, or is damaged.
        """
        return self._resume(self._stored.read(), scope)

    def write(self, progress: MigrationProgress) -> None:
        """Store the progress durably.

        Raises:
            IntegrityError: another run of the migration has moved the mark.
        """
        self._stored.write(progress)

    def end(self, progress: MigrationProgress) -> None:
        """Record that everything was copied and verified.

        The progress of a range of a division is kept, because a run that resumes must skip the range. Otherwise it is
        forgotten, so that the next migration copies everything again.
        """
        if self._division:
            self.write(replace(progress, verified=True))
        else:
            self.forget(progress.scope)

    def forget(self, scope: MigrationScope) -> None:
        """Forget the progress of a migration of this scope, so that the next run starts at the beginning."""
        self.write(MigrationProgress(scope, division=self._division))

    def _resume(self, found: MigrationProgress | None, scope: MigrationScope) -> MigrationProgress:
        """Return stored progress if it belongs to this scope and division; otherwise that of a new migration."""
        if found is not None and (found.scope, found.division) == (scope, self._division):
            return found
        return MigrationProgress(scope, division=self._division)


class MigrationInMark(MigrationStore):
    """Stores progress as a mark at the destination, where every process finds it."""

    def __init__(self, adapter: MarkStore, name: str, division: str = "") -> None:
        """Choose the mark.

        Args:
            adapter: the destination.
            name: the mark's name.
            division: as in `MigrationStore`.
        """
        super().__init__(ProgressInMark(adapter, name, MigrationProgress), division)


class MigrationInFile(MigrationStore):
    """Stores progress in a file. `end` deletes it, except for a range of a division."""

    def __init__(self, path: Path, division: str = "") -> None:
        """Choose the file.

        Args:
            path: created with its folder at the first page.
            division: as in `MigrationStore`.
        """
        super().__init__(ProgressInFile(path, MigrationProgress), division)
        self.path = path

    def read(self, scope: MigrationScope) -> MigrationProgress:
        """Return the progress, as `MigrationStore.read`.

        Raises:
            ConfigurationError: the file belongs to a migration of another scope, and this one is not divided.
        """
        found = self._stored.read()
        if found is not None and found.scope != scope and not self._division:
            raise ConfigurationError(
                f"{self.path} is the progress of another migration ({found.scope}): finish it, or delete the file"
            )
        return self._resume(found, scope)

    def forget(self, scope: MigrationScope) -> None:  # noqa: ARG002 the file belongs to one scope
        """Delete the file."""
        self.path.unlink(missing_ok=True)


def migrate_adapter(
    source: DatabaseAdapter,
    destination: DatabaseAdapter,
    scope: MigrationScope | None = None,
    *,
    progress: MigrationStore | None = None,
    page: int = PAGE_DELTAS,
    on_page: Callable[[MigrationProgress], None] | None = None,
) -> MigrationReport:
    """Copy what a source stores to a destination. The source is only read.

    The destination may already store deltas of other scopes. A migration may miss deltas that are written to the source
    meanwhile; then the verification fails, and another run copies them.

    Args:
        source: the adapter to read.
        destination: the adapter to write.
        scope: the deltas to copy; the default is everything.
        progress: stores progress for the next run; None starts at the beginning.
        page: deltas copied at once.
        on_page: called after each page.

    Returns:
        What the destination stores of the scope, and what this run copied.

    Raises:
        ConfigurationError: the stored progress belongs to another migration.
        AdapterError: an adapter cannot be reached; a retry continues.
        IntegrityError: the adapters differ at the end. The progress is reset, so that the next run copies everything.
    """
    scope = scope or MigrationScope()
    started, copied = time.perf_counter(), 0
    current = progress.read(scope) if progress is not None else MigrationProgress(scope)
    if current.verified:  # a range of a division that an earlier run has ended
        return MigrationReport(current.deltas, 0, current.pages, current.id_sum, 0.0, verified=True)
    first_query = replace(scope.query(page), after=current.after)
    for page_read in read_pages(source, first_query):
        if not len(page_read.deltas):
            break
        stored = copy_page(destination, "migration", page_read.deltas)
        crash_point("migrate.after_copy")  # tests kill the process here
        copied += stored.deltas
        total = BatchChecksum(current.deltas, current.id_sum).plus(stored)
        after = page_read.end or current.after
        current = replace(current, after=after, deltas=total.deltas, id_sum=total.id_sum, pages=current.pages + 1)
        is_last_page = page_read.end is None
        if progress is not None and not is_last_page:
            progress.write(current)
        crash_point("migrate.after_page")
        if on_page is not None:
            on_page(current)
    source_sum, destination_sum = scope_checksum(source, scope), scope_checksum(destination, scope)
    if source_sum != destination_sum:
        if progress is not None:
            progress.forget(scope)
        raise IntegrityError(
            f"the source has {source_sum.deltas} deltas (id sum {source_sum.id_sum}) and the destination "
            f"{destination_sum.deltas} (id sum {destination_sum.id_sum}). Run the migration again to copy new "
            "deltas. If the destination had other deltas of this scope before, narrow the scope."
        )
    if progress is not None:
        progress.end(replace(current, deltas=source_sum.deltas, id_sum=source_sum.id_sum))
        crash_point("migrate.after_end")
    return MigrationReport(
        source_sum.deltas, copied, current.pages, source_sum.id_sum, time.perf_counter() - started, verified=True
    )


def scope_checksum(adapter: DatabaseAdapter, scope: MigrationScope) -> BatchChecksum:
    """Return the number of an adapter's deltas in a scope, each once, and the sum of their ids as numbers.

    Args:
        adapter: the adapter.
        scope: the deltas to count.

    Raises:
        AdapterError: the adapter cannot be read.
    """
    total = BatchChecksum()
    for found in read_pages(adapter, scope.query(PAGE_DELTAS)):
        total = total.plus(table_checksum(found.deltas))
    return total


class HlcRange(NamedTuple):
    """A range of hlcs."""

    since: int
    """Exclusive lower bound."""
    until: int | None
    """Inclusive upper bound; None for no bound."""


class Division(msgspec.Struct, frozen=True):
    """A migration, or a transfer to a cold tier, divided into ranges."""

    id: str = ""
    """Ranges store their progress with this id, and ignore progress with another one. Empty if there is one range."""
    scope: MigrationScope = MigrationScope()
    points: tuple[int, ...] = ()
    """The last hlc of each range except the last."""

    def ranges(self) -> list[HlcRange]:
        """Return its ranges, in order."""
        starts, ends = (self.scope.since, *self.points), (*self.points, self.scope.until)
        return list(map(HlcRange, starts, ends))


def begin_division(
    source: DatabaseAdapter,
    scope: MigrationScope,
    store: ProgressStore[Division] | None,
    writers: int,
    size: int,
    *,
    any_scope: bool = False,
) -> Division:
    """Divide a transfer, or return the division that an earlier run began.

    Args:
        source: the adapter to read.
        scope: the deltas to transfer.
        store: stores the division until `end_division`; None if the transfer must not be divided.
        writers: number of tasks that may write to the target at the same time, and so of ranges, at most. With 1 the
            transfer is not divided.
        size: approximate number of deltas per range.
        any_scope: return a stored division even if its scope differs. A transfer to a cold tier needs this, because its
            scope ends at a later time in each run.

    Raises:
        AdapterError: an adapter cannot be reached.
        IntegrityError: another run divides the same transfer.
    """
    stored = store.read() if store is not None else None
    if stored is not None and stored.id and (any_scope or stored.scope == scope):
        return stored
    if store is None or writers == 1:
        return Division(scope=scope)
    points = split_points(source, scope.query(size), size)
    if len(points) >= writers:
        points = [points[number * len(points) // writers] for number in range(1, writers)]  # `writers` ranges
    if not points:
        return Division(scope=scope)
    division = Division(secrets.token_hex(8), scope, tuple(points))
    store.write(division)
    crash_point("ranges.begun")
    return division


def end_division(division: Division, store: ProgressStore[Division] | None) -> None:
    """Delete a division whose ranges are all done.

    Args:
        division: the division.
        store: where it is stored; None if the transfer is not divided.

    Raises:
        AdapterError: the adapter that stores it cannot be reached; retry.
    """
    if store is not None and division.id:
        crash_point("ranges.before_end")
        store.write(Division())
