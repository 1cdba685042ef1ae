"""Behaviour of staging in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakesync.model.errors import ConfigurationError, StagingUnavailableError
from lakesync.staging import memory, open_store
from lakesync.staging.memory import MemoryStore
from tests.conformance.book import Book, contents, make_delta


def folder_of(store) -> Path:
    """The folder of the store's files, as Spark gets it."""
    return Path(store.log_source().url.removeprefix("jdbc:sqlite:")).parent


def test_an_unnamed_store_is_deleted_when_it_is_closed(clock, book):
    store = open_store("memory://", clock)
    store.open(book)
    store.ensure_gateway("g")
    store.submit("g", book.push([make_delta("c", 1, "r", x=1)])).result()
    folder = folder_of(store)
    assert folder.is_dir()
    store.close()
    assert not folder.exists()
    other = open_store("memory://", clock)
    other.open(book)
    assert other.gateways() == []
    other.close()


def test_a_name_has_one_open_store_at_a_time(clock, book):
    first, second = MemoryStore(clock, "shared"), MemoryStore(clock, "shared")
    first.open(book)
    first.ensure_gateway("g")
    first.submit("g", book.push([make_delta("c", 1, "r", x=1)])).result()
    with pytest.raises(StagingUnavailableError, match="is owned by"):
        second.open(book)
    seen = first.read("g", contents).result()
    first.close()
    second.open(Book())
    assert second.read("g", contents).result() == seen
    second.close()


@pytest.mark.parametrize(
    ("opened", "is_pid_reused"), [("store.open(Book());", False), ("store.open(Book());", True), ("", False)]
)
def test_leftovers_of_a_killed_process_are_removed_by_the_next(
    clock, book, opened, is_pid_reused, monkeypatch, tmp_path
):
    monkeypatch.setattr(memory, "_SHARED_MEMORY", tmp_path)  # other tests remove leftovers too
    script = (
        "import os, pathlib, signal, sys; from lakesync.staging import memory; from lakesync.staging.memory import"
        " MemoryStore; memory._SHARED_MEMORY = pathlib.Path(sys.argv[1]);"
        "from tests.conformance.book import Book; store = MemoryStore(lambda: 1, 'n');"
        f"{opened} print(store.log_source().url, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    said, _ = killed.communicate(timeout=60)
    assert killed.returncode == -9
    left = Path(said.strip().removeprefix("jdbc:sqlite:")).parent
    if is_pid_reused:  # opened by this process
        left = left.rename(left.with_name(left.name.replace(str(killed.pid), str(os.getpid()), 1)))
    assert left.is_dir()
    living = MemoryStore(clock)
    living.open(book)
    kept = folder_of(living)
    MemoryStore(clock).close()
    assert not left.exists()
    assert kept.is_dir()
    living.close()


def test_without_shared_memory_the_temporary_folder_is_used(monkeypatch, tmp_path, clock):
    monkeypatch.setattr(memory, "_SHARED_MEMORY", tmp_path / "absent")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = open_store("memory://", clock)
    store.open(Book())
    assert folder_of(store).parent == tmp_path
    store.close()


def test_an_unknown_url_names_the_known_ones(clock):
    with pytest.raises(ConfigurationError, match="memory://"):
        open_store("redis://somewhere", clock)
