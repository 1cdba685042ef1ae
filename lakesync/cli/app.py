"""The `lakesync` command: the list of its commands (`COMMANDS`), and the groups and apps that load them lazily.

A command's module is imported when the command runs, since importing all of them would take longer than most commands.
`LazyGroup` also turns exceptions into exit codes. The console script `lakesync` is `lakesync.cli.main`, which calls
`prepare_streams`, then the typer app `app`.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperCommand

from lakesync.cli import exit_codes
from lakesync.cli.commands import CONTEXT, GroupWithExamples


class CommandEntry(NamedTuple):
    """The module of a command, and how `lakesync --help` lists the command."""

    module: str
    """The command's module, relative to `lakesync.cli`, such as `remote.push`, which has the typer app `push_app`."""
    panel: str
    """The heading under which the command is listed."""
    summary: str
    """The first line of the command's help."""


class LazyCommand(TyperCommand):
    """A command whose module is not imported yet. It has only a name and a summary, for lists and completion."""

    def __init__(self, name: str, entry: CommandEntry) -> None:
        """Create a command from its entry.

        Args:
            name: the command's name on the command line.
            entry: the command's module and summary.
        """
        super().__init__(name=name, callback=None, help=entry.summary, short_help=entry.summary)
        self._entry = entry

    def load(self) -> Any:
        """Import the command's module and return the real command."""
        app = getattr(import_module(f"lakesync.cli.{self._entry.module}"), f"{self.name}_app")
        command = typer.main.get_command(app)
        command.name = self.name
        return command


class LazyGroup(GroupWithExamples):
    """The group `lakesync`, of lazy commands. Expected exceptions of commands become exit codes here."""

    def __init__(self, **attributes: Any) -> None:
        """Add a lazy command for each entry of `COMMANDS`. The arguments are those of `TyperGroup`."""
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.add_command(LazyCommand(name, entry), name)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 click's signature
        """Return the commands' names in the order of `COMMANDS`."""
        return list(self.commands)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands under the headings of their panels.

        Args:
            ctx: click's context.
            formatter: click's formatter of the help text.
        """
        TyperCommand.format_options(cast("TyperCommand", self), ctx, formatter)
        width = max(map(len, COMMANDS))
        for panel in dict.fromkeys(entry.panel for entry in COMMANDS.values()):
            with formatter.section(panel):
                in_panel = [(name, entry) for name, entry in COMMANDS.items() if entry.panel == panel]
                formatter.write_dl([(f"{name:<{width}}", entry.summary) for name, entry in in_panel])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments name, and import it if it is lazy.

        Args:
            ctx: click's context.
            args: the command line after the group's options.

        Returns:
            The command's name, the command, and the remaining arguments.
        """
        name, command, remaining_args = super().resolve_command(ctx, args)
        if isinstance(command, LazyCommand):
            command = command.load()
            self.add_command(command, name)
        return name, command, remaining_args

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An expected exception is reported on stderr, as JSON with `--json`, and becomes an exit code.

        Raises:
            typer.Exit: the command raised an expected exception.
            Exception: the command raised an unexpected exception, which is re-raised for its traceback; or a usage
                error, which typer reports.
        """
        as_json = "--json" in (*ctx._protected_args, *ctx.args)  # noqa: SLF001 click's own
        try:
            try:
                return super().invoke(ctx)
            finally:
                _flush_stdout()
        except Exception as error:
            format_usage = getattr(error, "format_message", None)  # typer's usage errors have it in all versions
            if format_usage is None:
                code = exit_codes.report_error(error, as_json=as_json)
            elif as_json:
                code = exit_codes.report_usage(format_usage())
            else:
                raise  # typer explains how to use a command
            if code is None:
                raise
            raise typer.Exit(code) from error


def prepare_streams() -> None:
    """Replace streams that the parent process closed, and escape characters that a stream cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their file descriptors
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def bypass_proxy() -> None:
    """Reach the servers of this machine without the proxy of `http_proxy`, also in child processes.

    A proxy cannot reach them. Dagster and Spark's client read the variables too, so each caller could not do it alone.
    Without a proxy in the variables, nothing changes: Python would ignore the proxy in the settings of macOS or
    Windows. Nor if `no_proxy` is `*`, which excludes all machines only while it is alone.
    """
    excluded = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    proxies = [name for name in map(str.lower, os.environ) if name.endswith("_proxy") and name != "no_proxy"]
    if proxies and excluded != "*":
        names = [excluded, "localhost", "127.0.0.1", "::1"]
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, names))


def _flush_stdout() -> None:
    """Flush stdout, so that a failure is reported like any other error and not while the interpreter exits.

    Raises:
        OSError: the disk is full, or the reader has closed its end. The remaining output is discarded, because the
            interpreter would try to write it again.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


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
    "rules": CommandEntry("remote.gateway_config", _INSPECT, "Validate, simulate, compare and activate sync rules."),
    "schema": CommandEntry("remote.gateway_config", _OPERATE, "Register, list and retire table schemas."),
    "flush": CommandEntry("remote.pipeline_runs", _OPERATE, "Flush the unflushed deltas to the lake now."),
    "materialise": CommandEntry("local.adapters", _OPERATE, "Update destination tables from a flush queue."),
    "backfill": CommandEntry("remote.pipeline_runs", _OPERATE, "Run partitions of Dagster assets again."),
    "checkpoint": CommandEntry("remote.checkpoint", _OPERATE, "Show and fetch the checkpoint of new clients."),
    "dlq": CommandEntry("remote.dlq", _OPERATE, "List, retry and drop dead letters."),
    "connectors": CommandEntry("remote.connectors", _OPERATE, "Register, list, test and unregister connectors."),
    "staging": CommandEntry("local.staging", _OPERATE, "Inspect, upgrade and rebuild the staging store."),
    "migrate": CommandEntry("local.adapters", _OPERATE, "Copy deltas from one adapter to another and verify the copy."),
    "erase": CommandEntry("local.staging", _OPERATE, "Erase a row, or everything that a client wrote, for good."),
}
"""Every command by name, in the order of the help."""


app = typer.Typer(
    name="lakesync",
    cls=LazyGroup,
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
