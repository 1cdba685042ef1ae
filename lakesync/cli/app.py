"""The `lakesync` command: the list of its commands.

A command's module is imported when the command runs, since importing all of them would take longer than most commands.
"""

from __future__ import annotations

from typing import Annotated

import typer

from lakesync.cli.lazy_commands import CONTEXT, CommandEntry, LazyGroup

_SETUP, _DATA, _INSPECT, _OPERATE = "Set up and run", "Data", "Inspect", "Operate"
"""The headings under which `lakesync --help` lists the commands."""

COMMANDS: dict[str, CommandEntry] = {
    "init": CommandEntry("local.init", _SETUP, "Create a project: lakesync.toml, a table schema and sync rules."),
    "up": CommandEntry("local.server", _SETUP, "Start the gateway, Spark and Dagster; Ctrl-C stops them."),
    "gateway": CommandEntry("local.server", _SETUP, "Run the gateway alone."),
    "pipeline": CommandEntry("local.server", _SETUP, "Start Spark and Dagster without a gateway; Ctrl-C stops them."),
    "demo": CommandEntry("local.server", _SETUP, "Sync a week of New York flights and verify the result."),
    "doctor": CommandEntry("local.doctor", _SETUP, "Check everything that LakeSync needs and suggest remedies."),
    "config": CommandEntry("local.config", _SETUP, "Show the settings in effect and their sources."),
    "token": CommandEntry("local.token", _SETUP, "Create and inspect the tokens of clients and admins."),
    "fake": CommandEntry("local.fake_servers", _SETUP, "Run a fake Jira or Salesforce server to try connectors."),
    "push": CommandEntry("remote.push", _DATA, "Import rows or deltas from a file."),
    "pull": CommandEntry("remote.pull", _DATA, "Show the rows that a client may see, without side effects."),
    "tail": CommandEntry("remote.pull", _DATA, "Print changes to the rows that a client may see."),
    "query": CommandEntry("local.query", _DATA, "Run a SQL query over the lake and the unflushed deltas."),
    "status": CommandEntry("remote.status", _INSPECT, "Show the progress of gateway, clients, lake and pipeline."),
    "clients": CommandEntry("remote.status", _INSPECT, "List the clients of a gateway, the largest lag first."),
    "console": CommandEntry("local.token", _INSPECT, "Print the address of the gateway's console, signed in."),
    "explain": CommandEntry("remote.row_inspection", _INSPECT, "Explain why a client sees a row or does not."),
    "row": CommandEntry("remote.row_inspection", _INSPECT, "Inspect one row of the lake."),
    "trace": CommandEntry("remote.row_inspection", _INSPECT, "Trace a delta through commit, flush, lake and clients."),
    "rules": CommandEntry("remote.rules", _INSPECT, "Validate, simulate, compare and activate sync rules."),
    "schema": CommandEntry("remote.schema", _OPERATE, "Register, list and retire table schemas."),
    "flush": CommandEntry("remote.pipeline_requests", _OPERATE, "Flush the unflushed deltas to the lake now."),
    "materialise": CommandEntry("local.adapters", _OPERATE, "Update destination tables from a flush queue."),
    "backfill": CommandEntry("remote.pipeline_requests", _OPERATE, "Run partitions of Dagster assets again."),
    "checkpoint": CommandEntry("remote.checkpoint", _OPERATE, "Show and fetch the checkpoint of new clients."),
    "dlq": CommandEntry("remote.dlq", _OPERATE, "List, retry and drop dead letters."),
    "connectors": CommandEntry("remote.connectors", _OPERATE, "Register, list, test and unregister connectors."),
    "staging": CommandEntry("local.staging", _OPERATE, "Inspect, upgrade and rebuild the staging store."),
    "migrate": CommandEntry("local.adapters", _OPERATE, "Copy deltas from one adapter to another and verify the copy."),
    "erase": CommandEntry("local.staging", _OPERATE, "Erase a row, or everything that a client wrote, for good."),
}
"""Every command by name, in the order of the help."""


class Commands(LazyGroup):
    """The group `lakesync`."""

    entries = COMMANDS


app = typer.Typer(
    name="lakesync",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
    epilog="""
Examples:
  lakesync init && lakesync up   # create and run a project
  lakesync status                # which clients and tables are behind?
  lakesync push --help           # options and examples of a command
    """,
)


def _print_version(is_requested: bool) -> None:
    """Print the version and exit, if `--version` was given."""
    if is_requested:
        from importlib.metadata import version

        print(version("lakesync"))
        raise typer.Exit


@app.callback()
def lakesync(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Offline-first sync with an Iceberg lakehouse behind it.

    The first that has a setting wins: options, LAKESYNC_* variables, lakesync.toml, ~/.config/lakesync/lakesync.toml.
    Exit codes: 0 ok, 1 failed, 2 usage, 3 unreachable, 4 not allowed, 5 invalid, 6 partial.
    """
