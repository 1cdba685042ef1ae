"""A migration that is killed at any page resumes at the position that the destination has recorded."""

from __future__ import annotations

import pytest

from lakesync.adapters import LocalDisk, ObjectDeltas, SqliteAdapter, migrate_adapter
from lakesync.adapters.transfer.migration import MigrationInMark, MigrationProgress, MigrationScope, scope_checksum
from lakesync.model.crash_points import VARIABLE
from lakesync.model.errors import IntegrityError
from tests.conformance.test_adapters import everything
from tests.conformance.test_migrations import fill
from tests.forked import run_code

SCOPE = MigrationScope(tables=("t",))
KILLED = """
import sys
from lakesync.adapters import LocalDisk, ObjectDeltas, SqliteAdapter, migrate_adapter
from lakesync.adapters.transfer.migration import MigrationInMark, MigrationScope

kind, source, path = sys.argv[1:]
target = SqliteAdapter(path) if kind == "sqlite" else ObjectDeltas(LocalDisk(path))
scope = MigrationScope(tables=("t",))
migrate_adapter(SqliteAdapter(source), target, scope, progress=MigrationInMark(target, "m"), page=20)
"""


def opened(kind, path):
    return SqliteAdapter(path) if kind == "sqlite" else ObjectDeltas(LocalDisk(path))


@pytest.mark.parametrize(("kind", "place"), [("sqlite", "migrate.after_copy:3"), ("objects", "migrate.after_page:2")])
def test_a_killed_migration_resumes_at_the_destinations_mark(tmp_path, kind, place):
    source, path = SqliteAdapter(tmp_path / "source.db"), str(tmp_path / "there")
    fill(source)
    before = everything(source)
    assert run_code(KILLED, kind, str(tmp_path / "source.db"), path, **{VARIABLE: place}) == -9
    target = opened(kind, path)
    report = migrate_adapter(source, target, SCOPE, progress=MigrationInMark(target, "m"), page=20)
    assert 0 < report.copied < report.deltas == 120
    assert scope_checksum(target, SCOPE) == scope_checksum(source, SCOPE)
    assert everything(source) == before
    again = migrate_adapter(source, target, SCOPE, progress=MigrationInMark(target, "m"), page=20)
    assert again.copied == 120  # it completed, so the next one reads everything
    source.close()
    target.close()


def test_a_concurrent_run_of_a_migration_is_rejected(tmp_path):
    source, target = SqliteAdapter(tmp_path / "source.db"), SqliteAdapter(tmp_path / "target.db")
    fill(source)
    first, second = MigrationInMark(target, "m"), MigrationInMark(target, "m")
    assert first.read(SCOPE) == second.read(SCOPE)
    migrate_adapter(source, target, SCOPE, progress=first, page=60)
    with pytest.raises(IntegrityError, match="another run has moved it"):
        migrate_adapter(source, target, SCOPE, progress=_Stale(second), page=60)
    source.close()
    target.close()


class _Stale:
    """Progress that was read before another run began."""

    def __init__(self, progress):
        self.write, self.forget = progress.write, progress.forget

    def read(self, scope):
        return MigrationProgress(scope)
