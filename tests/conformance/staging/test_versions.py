"""A store of an older version is upgraded in place, one of a newer version is rejected; `staging status` shows both."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.model.errors import ConfigurationError, StagingUnavailableError, StagingVersionError
from lakesync.staging import migrations, open_store
from lakesync.staging.migrations import Status, Upgrade
from lakesync.staging.store_urls import store_status, upgrade_store
from tests.conformance.book import Book, contents, make_delta

PUSHES = [[make_delta("c", number * 10 + i, f"r{i}", x=number) for i in range(3)] for number in range(1, 6)]


@pytest.fixture
def old(url):
    """A store in the schema of the first version, with a few pushes, as that version wrote it."""
    _apply_first(url)
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite://") + "/log.db")) as log, log:
            log.execute("INSERT INTO gateway VALUES ('g', 7, 512, 0, NULL, 0)")
            log.execute("INSERT INTO shard VALUES ('g', 'main', 0, 0, 0, 0, 0, 0, NULL, 0)")
        log.close()
    else:
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO lakesync.gateway VALUES ('g', 7, 512, 0, NULL, 0)")
            connection.execute("INSERT INTO lakesync.shard VALUES ('g', 'main', 0, 0, 0, 0, 0, 0, NULL, 0)")
    return url


def _apply_first(url):
    first = {name: migrations.migrations(name)[0] for name in ("sqlite/log", "sqlite/state", "postgres")}
    if url.startswith("sqlite"):
        from pathlib import Path

        folder = Path(url.removeprefix("sqlite://"))
        folder.mkdir()
        for database in ("log", "state"):
            with closing(sqlite3.connect(folder / f"{database}.db")) as connection, connection:
                connection.executescript(first[f"sqlite/{database}"].sql + "; PRAGMA user_version = 1")
            connection.close()
        return
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA lakesync")
        connection.execute("CREATE TABLE lakesync.migration (version integer PRIMARY KEY, name text NOT NULL)")
        connection.execute(first["postgres"].sql)
        connection.execute("INSERT INTO lakesync.migration VALUES (1, '0001_staging.sql')")


def _newest(url):
    kinds = ("sqlite/log", "sqlite/state") if url.startswith("sqlite") else ("postgres",)
    return [migrations.migrations(kind)[-1].number for kind in kinds]


def test_an_old_store_is_upgraded_in_place_and_used(old, clock):
    done = upgrade_store(old)
    assert [each.before for each in done] == [1] * len(done)
    assert [each.after for each in done] == _newest(old)
    assert upgrade_store(old) == [Upgrade(each.database, each.after, each.after) for each in done]
    store, book = open_store(old, clock), Book()
    store.open(book)
    assert store.read("g", lambda view: (view.epoch, view.arrival)).result() == (7, 512)
    for deltas in PUSHES:
        store.submit("g", book.push(deltas)).result()
    rows, _ = store.read("g", contents).result()
    assert len(rows) == 3
    store.close()


def test_a_gateway_upgrades_a_store_when_it_opens_it(old, clock):
    assert {schema.version for schema in store_status(old).schemas} == {1}
    store = open_store(old, clock)
    store.open(Book())
    store.close()
    assert [schema.version for schema in store_status(old).schemas] == _newest(old)


def test_a_newer_store_is_rejected_with_both_versions_and_unchanged(url, clock):
    store = open_store(url, clock)
    store.open(Book())
    store.ensure_gateway("g")
    store.close()
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite://") + "/state.db")) as connection, connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    else:
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO lakesync.migration VALUES (99, 'from the future')")
    with pytest.raises(StagingVersionError, match=rf"99.* up to {_newest(url)[-1]}\b"):
        upgrade_store(url)
    with pytest.raises(StagingVersionError, match="99"):
        open_store(url, clock).open(Book())
    assert store_status(url).schemas[-1].version == 99


def test_the_status_shows_heads_and_bytes_of_a_store_in_use(url, clock):
    store, book = open_store(url, clock), Book()
    store.open(book)
    store.ensure_gateway("g")
    entries = [store.submit("g", book.push(deltas)).result() for deltas in PUSHES]
    found = store_status(url)
    (head,) = found.heads
    assert (head.gateway, head.last_seq, head.flushed_seq, head.deltas) == ("g", 5, 0, 15)
    assert head.arrival == entries[-1].arrival
    assert head.bytes == sum(len(entry.body) for entry in entries)
    assert found.bytes > head.bytes
    assert "postgres:postgres" not in found.url
    if url.startswith("sqlite"):
        with pytest.raises(StagingUnavailableError, match="owned by process"):
            upgrade_store(url)
    store.close()


def test_the_status_leaves_out_a_file_that_is_removed_while_it_is_read(old):
    if old.startswith("sqlite"):
        folder = Path(old.removeprefix("sqlite://"))
        # found in the folder and then removed, like the `-wal` of a store that another process closes
        folder.joinpath("closed.db-wal").symlink_to(folder / "removed")
    assert store_status(old).bytes > 0


def test_the_status_of_a_store_without_tables_has_its_versions(tmp_path):
    """A process that creates a store may be killed before the first migration."""
    (tmp_path / "log.db").touch()
    status = store_status(f"sqlite://{tmp_path}")
    assert [(each.version, each.newest > 0) for each in status.schemas] == [(0, True), (0, True)]
    assert status.heads == ()


def test_the_commands_report_the_versions(old):
    result = CliRunner().invoke(app, ["staging", "migrate", "--staging", old], catch_exceptions=False)
    assert f"schema version 1 → {_newest(old)[0]}" in result.stdout
    result = CliRunner().invoke(app, ["staging", "migrate", "--staging", old, "--json"], catch_exceptions=False)
    assert [each.after for each in msgspec.json.decode(result.stdout, type=list[Upgrade])] == _newest(old)
    result = CliRunner().invoke(app, ["staging", "status", "--staging", old, "--json"], catch_exceptions=False)
    assert msgspec.json.decode(result.stdout, type=Status) == store_status(old)
    result = CliRunner().invoke(app, ["staging", "status", "--staging", old], catch_exceptions=False)
    assert "gateway" in result.stdout
    assert "main" in result.stdout


def test_a_missing_store_is_an_error_with_its_url(tmp_path, url):
    with pytest.raises(ConfigurationError, match="no staging store"):
        store_status(url)
    with pytest.raises(ConfigurationError, match="'memory'"):
        upgrade_store("memory://x")
