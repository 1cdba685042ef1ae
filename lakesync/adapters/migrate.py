"""Everything that one adapter holds, to another: by age, page by page, resumable, and compared at the end.

Progress is written after each page, so a migration that was killed goes on behind the last page that it wrote down; the
page after it may be written twice, which changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from lakesync.adapters.arrow import held_in_table
from lakesync.adapters.base import DatabaseAdapter, DeltaQuery, Held, Marked, Position
from lakesync.adapters.moving import PAGE, copy_page
from lakesync.adapters.progress import MarkKept, ProgressKept
from lakesync.adapters.several import read_arrow, walk
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import ConfigurationError, IntegrityError


class Scope(msgspec.Struct, frozen=True):
    """What is migrated; every condition must hold."""

    gateway: str | None = None
    tables: tuple[str, ...] = ()
    since: int = -1
    """Above this hlc."""
    until: int | None = None
    """At or below this hlc."""

    def query(self, limit: int) -> DeltaQuery:
        """What that is to an adapter."""
        return DeltaQuery("hlc", self.since, self.until, None, self.gateway, self.tables, (), limit)


class Progress(msgspec.Struct, frozen=True):
    """How far a migration is."""

    scope: Scope
    after: Position | None = None
    """Everything up to here is at the destination."""
    deltas: int = 0
    id_sum: int = 0
    pages: int = 0
    division: str = ""
    """The id of the division, where this is one of its ranges."""
    verified: bool = False
    """The range is done, and compared: nothing is left to do until the whole division is."""


class MigrationReport(msgspec.Struct, frozen=True):
    """What a migration did."""

    deltas: int
    """That the destination holds of the source, this run's and those of runs before it."""
    copied: int
    """In this run."""
    pages: int
    id_sum: int
    seconds: float
    verified: bool
    """Source and destination were read again, and are the same."""


class ProgressKeeper(Protocol):
    """Where a migration leaves its place for the next run."""

    def read(self, scope: Scope) -> Progress:
        """How far the migration of this scope is."""

    def write(self, progress: Progress) -> None:
        """Keep it durably."""

    def end(self, progress: Progress) -> None:
        """Take note that everything was copied and compared."""

    def remove(self) -> None:
        """Forget it."""


class ProgressMark:
    """Progress as a mark at the destination, which every process that writes there finds."""

    def __init__(self, adapter: Marked, name: str, division: str = "") -> None:
        """Args: adapter: the destination; name: of the mark; division: the id of the division whose range it is."""
        self._kept = MarkKept(adapter, name, Progress)
        self._division = division
        self._scope: Scope | None = None

    def read(self, scope: Scope) -> Progress:
        """How far the migration of this scope is; from nothing where the mark is of another."""
        self._scope = scope
        found = self._kept.read()
        fresh = Progress(scope, division=self._division)
        return found if found is not None and _is_same(found, fresh) else fresh

    def write(self, progress: Progress) -> None:
        """Keep it durably.

        Raises:
            IntegrityError: another run of the migration has moved it.
        """
        self._kept.write(progress)

    def end(self, progress: Progress) -> None:
        """Keep a range as verified; forget a whole migration, so that the next one looks at everything."""
        self.write(replace(progress, verified=True) if self._division else Progress(progress.scope))

    def remove(self) -> None:
        """Begin at nothing the next time."""
        if self._scope is not None:
            self.write(Progress(self._scope, division=self._division))


class ProgressFile:
    """Progress in a file, replaced whole."""

    def __init__(self, path: Path, division: str = "") -> None:
        """Args: path: made, with its folder, at the first page; division: as `ProgressMark`."""
        self.path = path
        self._division = division
        self._kept = ProgressKept(path, Progress)

    def read(self, scope: Scope) -> Progress:
        """How far the migration of this scope is.

        Raises:
            ConfigurationError: the file is of another migration, or damaged.
        """
        found = self._kept.read()
        fresh = Progress(scope, division=self._division)
        if found is not None and found.scope != scope and not self._division:
            raise ConfigurationError(
                f"{self.path} is the progress of another choice of deltas ({found.scope}): finish that, or remove it"
            )
        return found if found is not None and _is_same(found, fresh) else fresh

    def write(self, progress: Progress) -> None:
        """Keep it durably."""
        self._kept.write(progress)

    def end(self, progress: Progress) -> None:
        """Keep a range as verified; forget a whole migration, so that the next one looks at everything."""
        if self._division:
            self.write(replace(progress, verified=True))
        else:
            self.remove()

    def remove(self) -> None:
        """Forget it."""
        self._kept.remove()


def migrate_adapter(
    source: DatabaseAdapter,
    destination: DatabaseAdapter,
    scope: Scope | None = None,
    *,
    progress: ProgressKeeper | None = None,
    page: int = PAGE,
    on_page: Callable[[Progress], None] | None = None,
) -> MigrationReport:
    """Copy what a source holds; the source is only read.

    The destination may hold other deltas already, of other scopes. What reaches the source meanwhile may or may not be
    copied; where it was missed, the comparison at the end says so, and a run more brings it.

    Args:
        source: where from.
        destination: where to.
        scope: what; unless given, everything.
        progress: where a run that is killed is to leave its place for the next.
        page: deltas that are moved at once.
        on_page: told after each.

    Raises:
        AdapterError: one of the two cannot be reached; a repeat goes on.
        IntegrityError: the two differ at the end; the progress is forgotten, so that the next run looks at everything.
    """
    scope = scope or Scope()
    started, copied = time.perf_counter(), 0
    at = progress.read(scope) if progress is not None else Progress(scope)
    if at.verified:
        return MigrationReport(at.deltas, 0, at.pages, at.id_sum, 0.0, verified=True)
    for found in walk(lambda query: read_arrow(source, query), replace(scope.query(page), after=at.after)):
        if not len(found.deltas):
            break
        held = copy_page(destination, "migration", found.deltas)
        crash_point("migrate.after_copy")
        copied += held.deltas
        at = replace(
            at,
            after=found.end or at.after,
            deltas=at.deltas + held.deltas,
            id_sum=(at.id_sum + held.id_sum) % 2**64,
            pages=at.pages + 1,
        )
        if progress is not None and found.end is not None:
            progress.write(at)
        crash_point("migrate.after_page")
        if on_page is not None:
            on_page(at)
    theirs, ours = digest(source, scope), digest(destination, scope)
    if theirs != ours:
        if progress is not None:
            progress.remove()
        raise IntegrityError(
            f"the source holds {theirs.deltas} deltas (sum of ids {theirs.id_sum}) and the destination {ours.deltas} "
            f"({ours.id_sum}): run it again for what reached the source meanwhile; where the destination held others "
            "of this choice before, narrow the choice"
        )
    if progress is not None:
        progress.end(replace(at, deltas=theirs.deltas, id_sum=theirs.id_sum))
        crash_point("migrate.after_end")
    return MigrationReport(theirs.deltas, copied, at.pages, theirs.id_sum, time.perf_counter() - started, verified=True)


def _is_same(found: Progress, fresh: Progress) -> bool:
    """Whether progress that was kept is of the same scope and division."""
    return (found.scope, found.division) == (fresh.scope, fresh.division)


def digest(adapter: DatabaseAdapter, scope: Scope, page: int = PAGE) -> Held:
    """How many deltas an adapter holds of a scope, each counted once, and the sum of their ids.

    Raises:
        AdapterError: it cannot be read.
    """
    count, total = 0, 0
    for found in walk(lambda query: read_arrow(adapter, query), scope.query(page)):
        held = held_in_table(found.deltas)
        count, total = count + held.deltas, total + held.id_sum
    return Held(count, total % 2**64)
