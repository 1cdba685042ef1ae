"""`lakesync query --engine spark`: the platform's own process asks Spark, which this package does not know."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from lakesync.exceptions import (
    LakeSyncError,
    LakeUnavailableError,
    NotFoundError,
    StagingUnavailableError,
    StartupError,
    ValidationError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from lakesync.analysis.moments import AsOf
    from lakesync.config import Config

_REFUSED = 3
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

    if importlib.util.find_spec("resources") is None:
        raise StartupError("--engine spark needs LakeSync's platform, which runs from a checkout (scripts/install)")
    asked = {"sql": sql, "arrival": as_of.arrival if as_of else None, "snapshot": as_of.snapshot if as_of else None}
    done = subprocess.run(
        [sys.executable, "-m", "resources.sql"],
        input=json.dumps(asked).encode(),
        env={**os.environ, **config.environment(), **_running(config)},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode == _REFUSED:
        told = json.loads(done.stdout)
        kind = next((each for each in _ERRORS if each.code == told["code"]), LakeSyncError)
        raise kind(told["error"])
    if done.returncode:
        raise LakeUnavailableError("the process that asks Spark ended with an error; its last lines are above")
    return pa.ipc.open_stream(done.stdout).read_all()


def _running(config: Config) -> dict[str, str]:
    """Where the Spark of a `lakesync up` over this data folder listens, unless one is configured."""
    if config.spark.remote or config.spark.port:
        return {}
    try:
        told = json.loads((config.data_dir / "up.json").read_text("utf-8"))["spark"]
    except (OSError, ValueError, KeyError):
        return {}
    found = {"LAKESYNC_SPARK_REMOTE": told.get("remote"), "LAKESYNC_SPARK_TOKEN": told.get("token")}
    return {name: value for name, value in found.items() if value}
