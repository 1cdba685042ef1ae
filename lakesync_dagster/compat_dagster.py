"""Names that every run launcher of Dagster needs and that `dagster` itself does not export.

Launchers are documented as an extension point (https://docs.dagster.io/deployment/run-launcher); Dagster's own for
Docker and Kubernetes import the same names. A setting that preloads the modules of runs would replace the launcher:
dagster-io/dagster#8638 asks for one.
"""

import sys
from importlib.metadata import entry_points

import dagster as dg
from dagster._core.launcher.base import LaunchRunContext
from dagster._grpc.types import ExecuteRunArgs

__all__ = ["LaunchRunContext", "run_arguments", "run_command_line"]


def run_arguments(run: dg.DagsterRun, instance: dg.DagsterInstance) -> list[str]:
    """The arguments of the command `dagster` that execute a run."""
    origin = run.job_code_origin
    if origin is None:
        raise ValueError(f"run {run.run_id} does not say where its code is")
    request = ExecuteRunArgs(job_origin=origin, run_id=run.run_id, instance_ref=instance.get_ref())
    command = list(request.get_command_args())
    return command[command.index("api") :]


def run_command_line(arguments: list[str]) -> None:
    """Run the command `dagster` in this process, as its console script does."""
    (script,) = entry_points(group="console_scripts", name="dagster")
    sys.argv = ["dagster", *arguments]
    script.load()()
