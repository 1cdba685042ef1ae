"""`lakesync query --engine spark`: runs `lakehouse.spark_query` in a child process.

The package `lakesync` does not import Spark; the child process does. It reads a JSON request from stdin, and writes an
Arrow stream, or a JSON error, to a pipe.
"""

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
"""Exit code of `lakehouse.spark_query` after an expected error, which it reports as JSON."""
_STDERR = 2
"""File descriptor."""
_ERRORS: tuple[type[LakeSyncError], ...] = (
    ValidationError,
    NotFoundError,
    LakeUnavailableError,
    StagingUnavailableError,
)


def query(config: Config, sql: str, as_of: AsOf | None = None) -> pa.Table:
    """Run a query on the configured Spark, or on that of a `lakesync up` with the same data folder.

    Args:
        config: the configuration.
        sql: one query.
        as_of: the point in time to query; None for now, with unflushed deltas.

    Raises:
        ValidationError: the query is invalid.
        NotFoundError: a table or snapshot does not exist.
        LakeUnavailableError, StagingUnavailableError: Spark, the lake or the staging store cannot be read.
        StartupError: the platform is not installed.
    """
    import pyarrow as pa

    if importlib.util.find_spec("pyspark") is None:
        raise StartupError("--engine spark needs pyspark; run pip install 'lakesync[platform]'")
    request = {"sql": sql, "arrival": as_of.arrival if as_of else None, "snapshot": as_of.snapshot if as_of else None}
    exit_code, response = _run(json.dumps(request).encode(), {**config.environment(), **_up_variables(config)})
    if exit_code == _ERROR_CODE:
        failure = json.loads(response)
        error_class = next((each for each in _ERRORS if each.code == failure["code"]), LakeSyncError)
        raise error_class(failure["error"])
    if exit_code:
        raise LakeUnavailableError("the process that queries Spark failed; its output is above")
    return pa.ipc.open_stream(response).read_all()


def _run(request: bytes, variables: Mapping[str, str]) -> tuple[int, bytes]:
    """Run the child process and return its exit code and its response.

    The response has a pipe of its own, because libraries print on stdout, which goes to stderr here.

    Args:
        request: JSON for the child's stdin.
        variables: environment variables to add to those of this process.
    """
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as responses:  # noqa: PTH123 a file descriptor
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
        response = responses.read()
        return process.wait(), response


def _up_variables(config: Config) -> dict[str, str]:
    """Return the address and token of the Spark of a running `lakesync up`, as environment variables.

    Empty if a Spark is configured, or no `lakesync up` is running.
    """
    if config.spark.remote:
        return {}
    try:
        spark = json.loads((config.data_dir / "up.json").read_text("utf-8"))["spark"]
    except (OSError, ValueError, KeyError):
        return {}
    variables = {"LAKESYNC_SPARK_REMOTE": spark.get("remote"), "LAKESYNC_SPARK_TOKEN": spark.get("token")}
    return {name: value for name, value in variables.items() if value}
