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
from lakesync.adapters.base import DatabaseAdapter, DeltaQuery, Held, Mark, Marked, Position
from lakesync.adapters.moving import PAGE, copy_page
from lakesync.adapters.progress import ProgressKept, progress_in
from lakesync.adapters.several import read_arrow, walk
from lakesync.crash import crash_point
from lakesync.exceptions import ConfigurationError, IntegrityError


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

    def remove(self) -> None:
        """Forget it."""


class ProgressMark:
    """Progress as a mark at the destination, which every process that writes there finds."""

    def __init__(self, adapter: Marked, name: str) -> None:
        """Args: adapter: the destination; name: of the mark."""
        self._adapter = adapter
        self._name = name
        self._text: str | None = None

    def read(self, scope: Scope) -> Progress:
        """How far the migration of this scope is; from nothing where the mark is of another."""
        self._text = self._adapter.mark(self._name)
        found = progress_in(self._text, Progress, self._name)
        return found if found is not None and found.scope == scope else Progress(scope)

    def write(self, progress: Progress) -> None:
        """Keep it durably.

        Raises:
            IntegrityError: another run of the migration has moved it.
        """
        text = msgspec.json.encode(progress).decode()
        self._adapter.move_mark(Mark(self._name, self._text, text))
        self._text = text

    def remove(self) -> None:
        """Begin at nothing the next time."""
        if self._text is not None:
            self.write(Progress(msgspec.json.decode(self._text, type=Progress).scope))


class ProgressFile:
    """Progress in a file, replaced whole."""

    def __init__(self, path: Path) -> None:
        """Args: path: made, with its folder, at the first page."""
        self.path = path
        self._kept = ProgressKept(path, Progress)

    def read(self, scope: Scope) -> Progress:
        """How far the migration of this scope is.

        Raises:
            ConfigurationError: the file is of another migration, or damaged.
        """
        found = self._kept.read()
        if found is not None and found.scope != scope:
            raise ConfigurationError(
                f"{self.path} is the progress of another choice of deltas ({found.scope}): finish that, or remove it"
            )
        return found or Progress(scope)

    def write(self, progress: Progress) -> None:
        """Keep it durably."""
        self._kept.write(progress)

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
    for found in walk(lambda query: read_arrow(source, query), replace(scope.query(page), after=at.after)):
        if not len(found.deltas):
            break
        held = copy_page(destination, "migration", found.deltas)
        crash_point("migrate.after_copy")
        copied += held.deltas
        at = Progress(
            scope,
            found.end or at.after,
            at.deltas + held.deltas,
            (at.id_sum + held.id_sum) % 2**64,
            at.pages + 1,
        )
        if progress is not None and found.end is not None:
            progress.write(at)
        crash_point("migrate.after_page")
        if on_page is not None:
            on_page(at)
    theirs, ours = digest(source, scope), digest(destination, scope)
    if progress is not None:
        progress.remove()
    if theirs != ours:
        raise IntegrityError(
            f"the source holds {theirs.deltas} deltas (sum of ids {theirs.id_sum}) and the destination {ours.deltas} "
            f"({ours.id_sum}): run it again for what reached the source meanwhile; where the destination held others "
            "of this choice before, narrow the choice"
        )
    return MigrationReport(theirs.deltas, copied, at.pages, theirs.id_sum, time.perf_counter() - started, verified=True)


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
