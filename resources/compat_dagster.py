"""Names of Dagster that `dagster` does not export. No other module imports a private module of Dagster.

- Run launchers are documented as an extension point (https://docs.dagster.io/deployment/run-launcher), and Dagster's
  own for Docker and Kubernetes import `LaunchRunContext` and `ExecuteRunArgs` from where they are taken here. A setting
  that preloads the modules of runs would replace the launcher: dagster-io/dagster#8638 asks for one.
- The other names are types of values that public functions take or return: `dg.define_asset_job` returns an
  `UnresolvedAssetJobDefinition`, `DagsterInstance.event_log_storage` returns records of checks, and an
  `dg.AssetCheckEvaluation` that is reported outside a run names its materialisation.
- `get_next_cron_tick` reads a cron expression as Dagster's schedules do; `dagster` exports nothing that does.
- `dagster_webserver.webserver.DagsterWebserver`, whose `build_middleware` is made to be overridden, takes a
  `WorkspaceProcessContext`; the command `dagster-webserver` has no option for a middleware.
"""

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.launcher.base import LaunchRunContext
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._grpc.types import ExecuteRunArgs
from dagster._utils.schedules import get_next_cron_tick

__all__ = [
    "AssetCheckEvaluationTargetMaterializationData",
    "AssetCheckExecutionRecord",
    "AssetCheckExecutionRecordStatus",
    "LaunchRunContext",
    "UnresolvedAssetJobDefinition",
    "WorkspaceFileTarget",
    "WorkspaceProcessContext",
    "command_line",
    "get_next_cron_tick",
    "run_arguments",
    "run_command_line",
]


def run_arguments(run: dg.DagsterRun, instance: dg.DagsterInstance) -> list[str]:
    """Return the arguments of the command `dagster` that execute a run.

    Args:
        run: the run.
        instance: Dagster's instance, whose settings the process reads.
    """
    origin = run.job_code_origin
    if origin is None:
        raise ValueError(f"run {run.run_id} does not say where its code is")
    request = ExecuteRunArgs(job_origin=origin, run_id=run.run_id, instance_ref=instance.get_ref())
    command = list(request.get_command_args())
    return command[command.index("api") :]


def command_line() -> Callable[[], Any]:
    """Import the command `dagster` and return its entry point."""
    (script,) = entry_points(group="console_scripts", name="dagster")
    found: Callable[[], Any] = script.load()
    return found


def run_command_line(arguments: list[str]) -> None:
    """Run the command `dagster` in this process, as its console script does."""
    sys.argv = ["dagster", *arguments]
    command_line()()
