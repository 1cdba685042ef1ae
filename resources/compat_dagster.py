"""Names that Dagster does not export, and functions that run its commands; no other module imports private ones.

The assets and the code location's own processes (`lakesync_dagster`) import them from here. Dagster 1.13.27 has no
public way to them:

- `AssetCheckEvaluationTargetMaterializationData` names the materialisation that a check evaluated outside a run
  (`sensors.freshness`). Without it Dagster compares the times of check and materialisation. They come from the clocks
  of two processes, and SQLite stores one in whole seconds, so Dagster may show a check as outdated
  (dagster-io/dagster#31230).
- `ExecuteRunArgs` is the argument of `dagster api execute_run`, with which a process executes a recorded run.
  Dagster's launchers for Docker and Kubernetes import the class too (dagster-io/dagster#5652 asks for a documented
  way). The run launcher calls `run_arguments`; the run host calls the command in a process that it has forked. A
  launcher and host of LakeSync's own are needed until Dagster can preload the modules of runs: dagster-io/dagster#8638.
- `WorkspaceProcessContext` and `WorkspaceFileTarget` make the argument of `DagsterWebserver`, whose `build_middleware`
  is made to be overridden. The command `dagster-webserver` has no option for a middleware (dagster-io/dagster#2219).
"""

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._grpc.types import ExecuteRunArgs

__all__ = [
    "AssetCheckEvaluationTargetMaterializationData",
    "WorkspaceFileTarget",
    "WorkspaceProcessContext",
    "load_command",
    "run_arguments",
    "run_command",
]


def run_arguments(run: dg.DagsterRun, instance: dg.DagsterInstance) -> list[str]:
    """Return the arguments with which the command `dagster` executes a run.

    Args:
        run: the run.
        instance: Dagster's instance, whose settings the process reads.

    Raises:
        ValueError: the run does not record where its code is.
    """
    origin = run.job_code_origin
    if origin is None:
        raise ValueError(f"run {run.run_id} does not say where its code is")
    request = ExecuteRunArgs(job_origin=origin, run_id=run.run_id, instance_ref=instance.get_ref())
    command = list(request.get_command_args())
    return command[command.index("api") :]


def load_command() -> Callable[[], Any]:
    """Import the command `dagster`, and return the function that runs it. The run host imports it before it forks."""
    (script,) = entry_points(group="console_scripts", name="dagster")
    found: Callable[[], Any] = script.load()
    return found


def run_command(arguments: list[str]) -> None:
    """Run the command `dagster` in this process, as its console script does."""
    sys.argv = ["dagster", *arguments]
    load_command()()
