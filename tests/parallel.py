"""Distributes tests over the workers of a run: whole files, Spark's to two workers, the longest files first."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler.loadscope import LoadScopeScheduling

_ROOT = Path(__file__).parent.parent
_SPARK_FIXTURE = re.compile(r"\bspark_server\b|\bdef test_\w+\((?:[^)]*\W)?spark\b")
"""Matches the fixture of the shared Spark, or a test that opens a session on it."""


class Rooms(LoadScopeScheduling):
    """Assigns whole files to workers, so that a file's fixtures are created once.

    Files that need Spark are divided between two workers, each with a Spark of its own. With only one Spark, the other
    workers would end long before the one that uses it.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        if not needs_spark(file):
            return file
        return "spark: lakehouse" if file.startswith("tests/integration/lakehouse/") else "spark"


def place(nodeid: str) -> tuple[int, str]:
    """Return the place of a test's file: those that need Spark first, its kill last of them; then whole systems."""
    file = _file(nodeid)
    if needs_spark(file):
        return int(file == "tests/integration/lakehouse/test_flush.py"), file
    return 2 if file.startswith("tests/e2e/") else 3, file


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@cache
def needs_spark(file: str) -> bool:
    """Return whether the tests of a file, relative to the checkout, use the shared Spark."""
    return _SPARK_FIXTURE.search((_ROOT / file).read_text()) is not None
