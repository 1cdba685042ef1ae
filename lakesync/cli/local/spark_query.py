"""`lakesync query --engine spark`: the platform's own process asks Spark, which this package does not know."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from lakesync.model.errors import (
    LakeSyncError,
    LakeUnavailableError,
    NotFoundError,
    StagingUnavailableError,
    StartupError,
    ValidationError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from lakesync.analysis.as_of import AsOf
    from lakesync.config import Config

_REFUSED = 3
_STDERR = 2
_ERRORS: tuple[type[LakeSyncError], ...] = (
    ValidationError,
    NotFoundError,
    LakeUnavailableError,
    StagingUnavailableError,
)


def query(config: Config, sql: str, as_of: AsOf | None = None) -> pa.Table:
    """Run a query on the configured Spark, or the one of a `lakesync up` over the same data folder.

    Raises:
        ValidationError, NotFoundError, LakeUnavailableError, StagingUnavailableError: as on DuckDB.
        StartupError: the platform is not installed here.
    """
    import pyarrow as pa

    if importlib.util.find_spec("pyspark") is None:
        raise StartupError("--engine spark needs pyspark: pip install 'lakesync[platform]'")
    asked = {"sql": sql, "arrival": as_of.arrival if as_of else None, "snapshot": as_of.snapshot if as_of else None}
    code, answer = _run(json.dumps(asked).encode(), {**config.environment(), **_running(config)})
    if code == _REFUSED:
        told = json.loads(answer)
        kind = next((each for each in _ERRORS if each.code == told["code"]), LakeSyncError)
        raise kind(told["error"])
    if code:
        raise LakeUnavailableError("the process that asks Spark ended with an error; its last lines are above")
    return pa.ipc.open_stream(answer).read_all()


def _run(asked: bytes, variables: Mapping[str, str]) -> tuple[int, bytes]:
    """The exit code and the answer, which has a pipe of its own: warnings of libraries go to stderr."""
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as answers:  # noqa: PTH123 a descriptor
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "resources.sql", str(write_end)],
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=_STDERR,
                pass_fds=(write_end,),
            )
        finally:
            os.close(write_end)
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(asked)
        answer = answers.read()
        return process.wait(), answer


def _running(config: Config) -> dict[str, str]:
    """Where the Spark of a `lakesync up` over this data folder listens, and its token, unless one is configured."""
    if config.spark.remote:
        return {}
    try:
        told = json.loads((config.data_dir / "up.json").read_text("utf-8"))["spark"]
    except (OSError, ValueError, KeyError):
        return {}
    found = {"LAKESYNC_SPARK_REMOTE": told.get("remote"), "LAKESYNC_SPARK_TOKEN": told.get("token")}
    return {name: value for name, value in found.items() if value}
