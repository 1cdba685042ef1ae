"""Migrations copy deltas between any two adapters."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing

import pytest

from lakesync.adapters import DeltaQuery, LocalDisk, ObjectDeltas, SqliteAdapter, migrate_adapter
from lakesync.adapters.transfer.migration import MigrationScope, scope_checksum
from lakesync.cli import main
from lakesync.model.crash_points import VARIABLE
from lakesync.model.errors import IntegrityError
from tests.conformance.adapter_places import DATABASES, start_server
from tests.conformance.book import make_delta
from tests.conformance.test_adapters import batch, everything
from tests.forked import Forked


def fill(adapter, number: int = 1):
    some = [make_delta("c", n, f"r{n % 5}", table="tu"[n % 2], x=[n, {"é": None}]) for n in range(1, 121)]
    for gateway in ("g", "h"):
        adapter.insert_deltas(batch(number, *some, gateway=gateway))


DEEP = [pytest.param(kind, marks=pytest.mark.deep) for kind in ("mariadb", "parquet on s3")]


@pytest.mark.parametrize("kind", ["postgres", "json on local disk", *DEEP], indirect=True)
def test_deltas_migrate_between_any_two_adapters_and_back(kind, tmp_path):
    there, back = DATABASES[kind](tmp_path), SqliteAdapter(tmp_path / "back.db")
    start = SqliteAdapter(tmp_path / "start.db")
    fill(start)
    before = everything(start)
    for source, destination in ((start, there), (there, back)):
        report = migrate_adapter(source, destination, page=50)
        assert (report.deltas, report.copied, report.pages, report.verified) == (240, 240, 5, True)
        assert migrate_adapter(source, destination, page=50).deltas == 240
    assert everything(start) == before
    assert (
        scope_checksum(start, MigrationScope())
        == scope_checksum(there, MigrationScope())
        == scope_checksum(back, MigrationScope())
    )
    assert [stored.identity for stored in everything(back, DeltaQuery(order="hlc"))] == [
        stored.identity for stored in everything(start, DeltaQuery(order="hlc"))
    ]
    for each in (start, there, back):
        each.close()


@pytest.mark.deep
def test_deltas_migrate_through_every_adapter(request, tmp_path):
    start = SqliteAdapter(tmp_path / "start.db")
    fill(start)
    opened = [start]
    for kind in DATABASES:
        request.param = kind
        start_server(request)
        (tmp_path / kind).mkdir()
        opened.append(DATABASES[kind](tmp_path / kind))
        report = migrate_adapter(*opened[-2:])
        assert (report.copied, report.verified) == (240, True), kind
    assert {scope_checksum(each, MigrationScope()) for each in opened} == {scope_checksum(start, MigrationScope())}
    for each in opened:
        each.close()


@pytest.fixture
def kind(request):
    """A kind of adapter."""
    start_server(request)
    return request.param


def test_a_migration_copies_only_its_scope(tmp_path):
    with closing(SqliteAdapter(tmp_path / "source.db")) as source, closing(SqliteAdapter(tmp_path / "to.db")) as to:
        fill(source)
        scope = MigrationScope(gateway="h", tables=("t",), since=10, until=50)
        assert migrate_adapter(source, to, scope).deltas == 20
        assert {(stored.gateway, stored.delta.table) for stored in everything(to)} == {("h", "t")}
        to.insert_deltas(batch(9, make_delta("other", 20, "r", table="t", x=1), gateway="h"))
        with pytest.raises(IntegrityError, match=r"has 20 deltas .* the destination 21"):
            migrate_adapter(source, to, scope)


def migrate(words, output):
    """Run `lakesync migrate` with its output in a file."""
    sys.argv = ["lakesync", "migrate", *words]
    with output.open("w") as sys.stdout:
        main()


def command(tmp_path, *options, crash=""):
    """Run `lakesync migrate` in another process; return its exit code, output and errors."""
    uris = [f"--from=sqlite://{tmp_path}/source.db", f"--to=file://{tmp_path}/objects", f"--data={tmp_path}/data"]
    environment = {**os.environ, VARIABLE: crash, "LAKESYNC_CONFIG": ""}
    output, log = tmp_path / "output", tmp_path / "errors"
    log.unlink(missing_ok=True)
    ended = Forked(migrate, [*uris, "--page=50", *options], output, environment=environment, log=log)
    return ended.wait(120), output.read_text(), log.read_text()


def test_a_missing_source_is_not_created(tmp_path):
    code, output, errors = command(tmp_path, "--dry-run")
    assert (code, output) == (2, "")
    assert "source.db, which does not exist" in errors
    assert not (tmp_path / "source.db").exists()


def test_the_migrate_command_resumes_after_a_kill(tmp_path):
    source = SqliteAdapter(tmp_path / "source.db")
    fill(source)
    before = everything(source)
    _, output, _ = command(tmp_path, "--dry-run", "--json")
    assert json.loads(output) == {"source": 240, "destination": 0, "equal": False}
    assert not (tmp_path / "objects").exists()
    assert command(tmp_path, crash="migrate.after_copy:3")[0] == -9
    assert command(tmp_path, crash="migrate.after_page:2")[0] == -9
    code, output, errors = command(tmp_path, "--json")
    assert code == 0, errors
    report = json.loads(output)
    assert (report["deltas"], report["verified"]) == (240, True)
    assert report["copied"] == 40
    assert "240 deltas in 5 pages" in errors
    assert everything(source) == before
    objects = ObjectDeltas(LocalDisk(tmp_path / "objects"))
    assert scope_checksum(objects, MigrationScope()) == scope_checksum(source, MigrationScope())
    copied = everything(objects, DeltaQuery(order="hlc"))
    assert sorted(each.identity for each in copied) == sorted(each.identity for each in before)
    source.close()
