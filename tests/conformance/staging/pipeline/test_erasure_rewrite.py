"""A store answers pushes and pulls while an erasure rewrites its files; no file has the erased values afterwards."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.sqlite import file_copy
from lakesync.staging.sqlite.file_copy import FileCopy
from lakesync.staging.sqlite.files import sync_to_disk
from tests.conformance.book import make_delta
from tests.conformance.erased_world import SECRET, World, files_with
from tests.small_disk import mounted


@pytest.fixture
def world(tmp_path, clock):
    """A world over a SQLite store with rows of many sizes."""
    made = World(f"sqlite://{tmp_path / 'staging'}", clock)
    sizes = random.Random(7)
    for number in range(40):
        made.write("x", "r1", name=f"{SECRET}-{number}" * sizes.randint(1, 90))
        made.write("a", f"kept-{number}", name="kept" * sizes.randint(1, 400))
    yield made
    made.close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 16 MB."""
    with mounted(tmp_path / "disk", 16) as folder:
        yield folder


@pytest.mark.parametrize("seed", range(6))
def test_pushes_and_pulls_go_on_while_the_files_are_rewritten(world, tmp_path, clock, monkeypatch, seed):
    """Pushes are sent between the steps of the copying, and all of them are in the new files, also after a restart."""
    rows = {f"kept-{number}" for number in range(40)}
    numbers = random.Random(seed)

    def write_some() -> None:
        for _ in range(numbers.randint(1, 12)):
            row = f"r-{numbers.randint(0, 30)}"
            if numbers.random() < 0.2:
                world.write("a", row)
                rows.discard(row)
            else:
                world.write("a", row, name="kept" * numbers.randint(1, 500))
                rows.add(row)
        assert "r1" not in world.pull("b")

    for step in ("create", "update", "finish"):
        run = getattr(FileCopy, step)

        def beside(self, *arguments, run=run, step=step):
            if step != "finish" and threading.current_thread() is erasing:
                write_some()
            run(self, *arguments)
            if step != "finish" and threading.current_thread() is erasing:
                write_some()

        monkeypatch.setattr(FileCopy, step, beside)
    erasing = threading.current_thread()
    assert any(name.startswith("log.db") for name in files_with(tmp_path / "staging", SECRET))
    world.store.erase_row("g", "notes", "r1")
    assert files_with(tmp_path / "staging", SECRET) == []
    assert set(world.pull("c")) == rows
    before = world.rows["c"].copy()
    world.close()
    world.open()
    assert world.pull("d") == before
    for name in ("log.db", "state.db"):
        with closing(sqlite3.connect(tmp_path / "staging" / name)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert sorted(file.name for file in (tmp_path / "staging").iterdir() if ".rewriting" in file.name) == []


def test_pushes_of_other_threads_go_on(world, tmp_path, clock):
    stop = threading.Event()
    pushed: dict[str, int] = {}

    def push(client: str) -> None:
        number = 0
        while not stop.is_set() or number < 20:
            delta = make_delta(client, (clock.now_ms << 16) + number, f"{client}-{number % 50}", name="kept" * 40)
            assert world.push(client, delta).accepted == 1
            number += 1
        pushed[client] = min(number, 50)

    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(push, f"p{number}") for number in range(3)]
        try:
            for _ in range(3):
                world.write("x", "r1", name=SECRET * 50)
                world.store.erase_row("g", "notes", "r1")
                assert files_with(tmp_path / "staging", SECRET) == []
                clock.advance(10)
        finally:
            stop.set()
        [each.result() for each in running]
    rows = {f"{client}-{number}" for client, count in pushed.items() for number in range(count)}
    assert set(world.pull("c")) == rows | {f"kept-{number}" for number in range(40)}


def test_a_reader_that_ends_lets_the_rewrite_continue(world, tmp_path, monkeypatch):
    """Attempts to replace a file that is being read leave the store in use, and one of them succeeds afterwards."""
    with closing(
        sqlite3.connect(tmp_path / "staging" / "log.db", isolation_level=None, check_same_thread=False)
    ) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchone()
        attach = FileCopy.attach
        attempts = []

        def attach_and_end(self) -> None:
            attempts.append(self.path.name)
            if len(attempts) == 3:
                reader.close()
            attach(self)

        monkeypatch.setattr(FileCopy, "attach", attach_and_end)
        world.store.erase_row("g", "notes", "r1")
    assert attempts == ["log.db.rewriting"] * 3 + ["state.db.rewriting"]
    assert files_with(tmp_path / "staging", SECRET) == []
    world.write("a", "later", name="kept")
    assert "later" in world.pull("c")


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_a_handle_on_the_old_file_leaves_the_new_write_ahead_log(world, tmp_path, mode):
    """A process that opened the file, and has not read yet when it is replaced, gets an error instead of wrong rows.

    For SQLite, a file of at most one byte is an empty database, whose write-ahead log it deletes. That log would be the
    one of the new file, so the next crash would lose pushes.
    """
    log = tmp_path / "staging" / "log.db-wal"
    with closing(sqlite3.connect(f"file:{tmp_path}/staging/log.db?mode={mode}", uri=True)) as reader:
        world.store.erase_row("g", "notes", "r1")
        for number in range(5):
            world.write("a", f"later-{number}", name="kept")
        before = log.stat().st_ino
        for statement in ("SELECT count(*) FROM log", "PRAGMA wal_checkpoint(TRUNCATE)"):
            with pytest.raises(sqlite3.DatabaseError, match=r"not a database|malformed"):
                reader.execute(statement).fetchone()
    assert log.stat().st_ino == before
    world.write("a", "later", name="kept")
    assert "later" in world.pull("c")
    world.close()
    world.open()
    assert {"later", "later-4"} <= set(world.pull("d"))


@pytest.mark.parametrize("room", [0, 100, 300, 600, 1000], ids="{} KB".format)
def test_a_disk_that_becomes_full_leaves_the_store_in_use(small_disk, clock, monkeypatch, room):
    """Whichever write fails first, the store goes on with the old files, and a repeat completes the erasure."""
    world = World(f"sqlite://{small_disk / 'staging'}", clock)
    for number in range(60):
        world.write("x", "r1", name=f"{SECRET}-{number}")
        world.write("a", f"kept-{number}", name=os.urandom(4000).hex())
    filler = small_disk / "filler"
    create = FileCopy.create

    def fill_and_create(self) -> None:
        free = shutil.disk_usage(small_disk).free
        with filler.open("ab") as file:
            file.write(bytes(max(0, free - room * 1000)))
        create(self)

    with monkeypatch.context() as patched:
        patched.setattr(FileCopy, "create", fill_and_create)
        patched.setattr(file_copy, "size_of", lambda _: 0)  # the disk is not full yet when it is looked at
        with pytest.raises(StagingUnavailableError, match="erase again"):
            world.store.erase_row("g", "notes", "r1")
    filler.unlink()
    assert world.store.erasures("g")[0].done_ms is None
    world.write("a", "later", name="kept")
    kept = {"later"} | {f"kept-{number}" for number in range(60)}
    assert set(world.pull("c")) == kept
    assert world.store.erase_row("g", "notes", "r1").done_ms is not None
    assert files_with(small_disk / "staging", SECRET) == []
    world.close()
    world.open()
    assert set(world.pull("d")) == kept
    world.close()


@pytest.mark.parametrize("name", ["log.db", "state.db"])
@pytest.mark.parametrize("call", [1, 2], ids=["before the rename", "after the rename"])
def test_a_folder_that_cannot_be_synchronised_leaves_the_store_in_use(world, tmp_path, monkeypatch, name, call):
    calls: list[Path] = []

    def fail(path: Path) -> None:
        calls.extend([path] * path.is_dir())
        if path.is_dir() and len(calls) == call + (2 if name == "state.db" else 0):
            raise OSError(5, "Input/output error")
        sync_to_disk(path)

    with monkeypatch.context() as patched:
        patched.setattr(file_copy, "sync_to_disk", fail)
        with pytest.raises(StagingUnavailableError, match=f"{name} was not rewritten"):
            world.store.erase_row("g", "notes", "r1")
    world.write("a", "later", name="kept")
    assert "later" in world.pull("c")
    with closing(sqlite3.connect(tmp_path / "staging" / name)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert world.store.erase_row("g", "notes", "r1").done_ms is not None
    assert files_with(tmp_path / "staging", SECRET) == []
    assert set(world.pull("d")) == {"later"} | {f"kept-{number}" for number in range(40)}


def test_a_disk_without_room_for_the_copy_is_reported_before_copying(world, monkeypatch):
    monkeypatch.setattr(file_copy, "size_of", lambda _: 1 << 60)
    with pytest.raises(StagingUnavailableError, match="MiB of free disk"):
        world.store.erase_row("g", "notes", "r1")
    world.write("a", "later", name="kept")
    assert "later" in world.pull("c")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
def test_the_new_files_belong_to_the_owner_of_the_old_ones(world, tmp_path):
    """Root may run `lakesync erase` while the gateway, which runs as another user, is stopped."""
    names = ["log.db", "state.db"]
    for name in names:
        os.chown(tmp_path / "staging" / name, 4321, 8765)
    world.store.erase_row("g", "notes", "r1")
    world.write("a", "later", name="kept")
    names += [f"{name}-wal" for name in names]
    owned = [(tmp_path / "staging" / name).stat() for name in names]
    assert {(file.st_uid, file.st_gid, file.st_mode & 0o777) for file in owned} == {(4321, 8765, 0o600)}


def test_opening_completes_all_open_erasures_with_one_rewrite(world, tmp_path, monkeypatch):
    """The store answers no request meanwhile, so it must not rewrite its files for each erasure."""
    rows = ["r1", "kept-1", "kept-2"]
    with monkeypatch.context() as patched:
        patched.setattr(file_copy, "size_of", lambda _: 1 << 60)
        for row in rows:
            world.write("x", row, name=SECRET)
            with pytest.raises(StagingUnavailableError):
                world.store.erase_row("g", "notes", row)
    world.close()
    create, copied = FileCopy.create, []

    def create_and_count(self) -> None:
        copied.append(self.path.name)
        create(self)

    monkeypatch.setattr(FileCopy, "create", create_and_count)
    world.open()
    assert copied == ["log.db.rewriting", "state.db.rewriting"]
    assert [(each.row_id, each.done_ms is not None) for each in world.store.erasures("g")] == [
        (row, True) for row in rows
    ]
    assert files_with(tmp_path / "staging", SECRET) == []


def test_closing_the_store_interrupts_a_rewrite(world, tmp_path, monkeypatch):
    """The copying ends at once with an error, and the next start completes the erasure."""
    create = FileCopy.create
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as closer:
        closing_store = []

        def create_while_closing(self) -> None:
            closing_store.append(closer.submit(world.close))
            while not self._interrupted:
                threading.Event().wait(0.001)
            create(self)

        patched.setattr(FileCopy, "create", create_while_closing)
        with pytest.raises(StagingUnavailableError):
            world.store.erase_row("g", "notes", "r1")
        closing_store[0].result()
    world.open()
    assert [erasure.done_ms is None for erasure in world.store.erasures("g")] == [False]
    assert files_with(tmp_path / "staging", SECRET) == []
