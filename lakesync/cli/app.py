"""The `lakesync` command: every command's name and what it is for. The commands are imported when they are named."""

from __future__ import annotations

from typing import Annotated

import typer

from lakesync.cli.lazy_commands import CONTEXT, LazyGroup, Named

_RUN, _DATA, _KNOW, _OPERATE = "Set up and run", "Data", "Understand", "Operate"

COMMANDS: dict[str, Named] = {
    "init": Named("local.init", _RUN, "Write a commented lakesync.toml, a schema and rules that `lakesync up` runs."),
    "up": Named(
        "local.server",
        _RUN,
        "Start gateway, Spark and Dagster, keep them running, and stop them all on Ctrl-C or SIGTERM.",
        "up_app",
    ),
    "gateway": Named(
        "local.server",
        _RUN,
        "Run the gateway alone. Clients' tokens are checked with the secret in LAKESYNC_JWT_SECRET.",
        "gateway_app",
    ),
    "pipeline": Named(
        "local.server",
        _RUN,
        "Start Spark and Dagster without a gateway, keep them running, and stop them on Ctrl-C or SIGTERM.",
        "pipeline_app",
    ),
    "demo": Named(
        "local.server",
        _RUN,
        "Send a week of New York's flights through a whole LakeSync, and check the result against the truth.",
        "demo_app",
    ),
    "doctor": Named(
        "local.doctor", _RUN, "Look whether everything that a LakeSync needs is there, and say what to do."
    ),
    "config": Named("local.config", _RUN, "Show the settings in force, and where each comes from."),
    "token": Named("local.token", _RUN, "Make the tokens that clients and admins show a gateway, and read them."),
    "push": Named("remote.push", _DATA, "Import deltas, or rows as new ones, from a file."),
    "pull": Named("remote.pull", _DATA, "Show the rows that a client may see, without changing anything.", "pull_app"),
    "tail": Named("remote.pull", _DATA, "Show changes of what a client may see, until Ctrl-C.", "tail_app"),
    "query": Named(
        "local.query",
        _DATA,
        "Ask the lake: every synced table by its name, and the history as `deltas`, with what is not flushed yet.",
    ),
    "status": Named("remote.status", _KNOW, "Show at a glance how far gateway, clients, lake and pipeline are."),
    "clients": Named("remote.clients", _KNOW, "Show each client of a gateway, the one that is furthest behind first."),
    "console": Named(
        "remote.console",
        _KNOW,
        "Print the address of the gateway's page for operators: who is behind, and why a client lacks a row.",
    ),
    "explain": Named("remote.explain", _KNOW, "Say why a client sees a row or does not, clause by clause."),
    "row": Named("local.row", _KNOW, "Look at one row of the lake."),
    "trace": Named("remote.trace", _KNOW, "Follow a delta: client, commit, flush batch, snapshot, and who holds it."),
    "rules": Named(
        "remote.rules", _KNOW, "Check sync rules, try them as a user, and see what a change would do to whom."
    ),
    "schema": Named("remote.schema", _OPERATE, "Register table schemas, list them, and retire them."),
    "flush": Named("remote.flush", _OPERATE, "Carry what waits to the lake now."),
    "materialise": Named(
        "local.materialise", _OPERATE, "Bring a destination's tables in line after a gateway's flushes."
    ),
    "backfill": Named("remote.backfill", _OPERATE, "Run partitions of assets again: days, and tables or gateways."),
    "checkpoint": Named("remote.checkpoint", _OPERATE, "Look at what a new client starts from, and fetch it."),
    "dlq": Named("remote.dlq", _OPERATE, "Look at what was set aside: values that fit no column, work that failed."),
    "connectors": Named("remote.connectors", _OPERATE, "Register the systems that actions and ingestion talk to."),
    "staging": Named("local.staging", _OPERATE, "Look at the staging store, upgrade it, bring it back from the lake."),
    "migrate": Named(
        "local.migrate",
        _OPERATE,
        "Copy deltas from one adapter to another, and compare count and checksum at the end. The source is only read.",
    ),
    "erase": Named(
        "local.erase",
        _OPERATE,
        "Erase a row (--table and --row), or everything that a client wrote (--client), from staging for good.",
    ),
    "fake": Named(
        "local.fake_servers",
        _RUN,
        "Servers that speak as Jira and Salesforce do, for trying connectors without an account.",
    ),
}


class Commands(LazyGroup):
    """`lakesync`."""

    table = COMMANDS


app = typer.Typer(
    name="lakesync",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
    epilog="""
Examples:
  lakesync init && lakesync up   a new project: gateway, Spark and Dagster
  lakesync status                why does a client lack a row?
  lakesync COMMAND --help        options, and more examples
    """,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("lakesync"))
        raise typer.Exit


@app.callback()
def lakesync(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Say which LakeSync this is.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Offline-first sync with an Iceberg lakehouse behind it.

    Settings: options beat LAKESYNC_* variables, these lakesync.toml, and that ~/.config/lakesync/lakesync.toml.
    Exit codes: 0 ok, 1 failed, 2 usage, 3 unreachable, 4 not allowed, 5 invalid, 6 partial.
    """
