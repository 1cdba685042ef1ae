"""`lakesync query --engine spark`: runs `lakehouse.spark_query` in a process, because this package has no Spark."""

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

_ERROR_CODE = 3
"""Exit code of `lakehouse.spark_query` after an expected error."""
_STDERR = 2
_ERRORS: tuple[type[LakeSyncError], ...] = (
    ValidationError,
    NotFoundError,
    LakeUnavailableError,
    StagingUnavailableError,
)


def query(config: Config, sql: str, as_of: AsOf | None = None) -> pa.Table:
    """Run a query on the configured Spark, or on that of a `lakesync up` with the same data folder.

    Arguments and result are those of `lakesync.analysis.query.query`.

    Raises:
        ValidationError, NotFoundError, LakeUnavailableError, StagingUnavailableError: as on DuckDB.
        StartupError: the platform is not installed.
    """
    import pyarrow as pa

    if importlib.util.find_spec("pyspark") is None:
        raise StartupError("--engine spark needs pyspark; run pip install 'lakesync[platform]'")
    request = {"sql": sql, "arrival": as_of.arrival if as_of else None, "snapshot": as_of.snapshot if as_of else None}
    code, answer = _run(json.dumps(request).encode(), {**config.environment(), **_up_variables(config)})
    if code == _ERROR_CODE:
        failure = json.loads(answer)
        kind = next((each for each in _ERRORS if each.code == failure["code"]), LakeSyncError)
        raise kind(failure["error"])
    if code:
        raise LakeUnavailableError("the process that queries Spark failed; its output is above")
    return pa.ipc.open_stream(answer).read_all()


def _run(request: bytes, variables: Mapping[str, str]) -> tuple[int, bytes]:
    """Return the exit code and the answer. The answer has a pipe of its own; output of libraries goes to stderr."""
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as answers:  # noqa: PTH123 a file descriptor
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "lakehouse.spark_query", str(write_end)],
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=_STDERR,
                pass_fds=(write_end,),
            )
        finally:
            os.close(write_end)
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(request)
        answer = answers.read()
        return process.wait(), answer


def _up_variables(config: Config) -> dict[str, str]:
    """Return address and token of the Spark of a running `lakesync up`, as variables; empty if one is configured."""
    if config.spark.remote:
        return {}
    try:
        spark = json.loads((config.data_dir / "up.json").read_text("utf-8"))["spark"]
    except (OSError, ValueError, KeyError):
        return {}
    found = {"LAKESYNC_SPARK_REMOTE": spark.get("remote"), "LAKESYNC_SPARK_TOKEN": spark.get("token")}
    return {name: value for name, value in found.items() if value}
