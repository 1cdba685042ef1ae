"""A Dagster instance for tests: events in memory, and SQLite files that are created once for each process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import dagster as dg

_EVENTS_IN_MEMORY = {
    "event_log_storage": {"module": "dagster._core.storage.event_log", "class": "InMemoryEventLogStorage"}
}
"""The default storage creates and migrates a SQLite file for each run, and writes each event to disk."""


@contextmanager
def dagster_instance() -> Iterator[dg.DagsterInstance]:
    """Create a separate instance in a temporary folder, and set `DAGSTER_HOME` to the folder."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        shutil.copytree(_home_without_runs(), home, dirs_exist_ok=True)
        with dg.instance_for_test(_EVENTS_IN_MEMORY, temp_dir=home) as instance:
            yield instance


@cache
def _home_without_runs() -> str:
    """Return a folder with the files of an instance, for which Dagster runs all its migrations."""
    home = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    with dg.instance_for_test(_EVENTS_IN_MEMORY, temp_dir=home) as instance:
        instance.get_runs(limit=1)
        instance.all_instigator_state()
    return home
