"""A run's process is forked from one that has imported what runs need, rather than started as a new interpreter.

Dagster's code server starts a process for each run by multiprocessing's way `spawn`: five seconds of imports on two
cores before the first step. Here that way leads to a fork server, which has imported the definitions that the code
server has itself. To the code server such a process looks like any other: it sees it end, and it can end it.
"""

from __future__ import annotations

import os
from multiprocessing import context
from multiprocessing.forkserver import ensure_running, set_forkserver_preload

ASKED = "LAKESYNC_FORK_RUNS"
"""A variable."""

MODULES = [
    "lakesync_dagster.definitions",
    "dagster._grpc.impl",
    "pyspark.sql.connect.session",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "resources.spark",
    "resources.staging",
    "resources.lake.cuts.tags",
    "resources.lake.cuts.cutting",
    "resources.lake.checks",
    "resources.lake.history.flush",
    "resources.lake.figures",
    "resources.lake.named",
    "resources.lake.cuts.old_frames",
    "resources.lake.cuts.published",
    "resources.lake.state.samples",
    "resources.lake.state.increments",
]
"""What the steps of a flush import, most of it where it is used."""


def fork_runs() -> None:
    """Have the processes that this one starts from now on forked; begin with the imports at once.

    Only where `ASKED` is set, as `lakesync up` does for its code server: the fork server and runs, which import the
    definitions too, are not asked.
    """
    if os.environ.pop(ASKED, None) is None:
        return
    set_forkserver_preload(MODULES)
    ensure_running()
    context.SpawnProcess._Popen = staticmethod(context.ForkServerProcess._Popen)  # type: ignore[assignment,method-assign]  # noqa: SLF001
