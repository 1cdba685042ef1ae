"""`lakesync dlq`: lists, retries and drops dead letters, which were set aside so that other work could continue.

A gateway is one app's stream of changes. It has three kinds:

- `value`: a row's current value that does not fit its column in the lake. It can be neither retried nor dropped.
- `destination`: a table or value that a declared destination or flow (by which the pipeline writes a database) cannot
  store. It can be retried.
- `work`: a failed update of a table of current rows, after a flush by which a gateway without a pipeline copied changes
  from its log to a database. It can be retried or dropped.

An app has two, in its own database (`--app`), which can be retried or dropped: `edit`, a change that the gateway
rejected, and `action`, an action that failed.

The module `dead_letters` reads and changes them. A parameter `options: ConnectionOptions` adds the options that choose
gateway and token, from `--url` to `--data`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.commands import ConnectionOptions, Json, Yes, command_app, examples
from lakesync.cli.remote import dead_letters
from lakesync.model.errors import NotFoundError

if TYPE_CHECKING:
    from lakesync.config import Config
    from lakesync.model.errors import LakeSyncError

dlq_app = command_app(
    """List, retry and drop dead letters.

    They are values, tables and work that were set aside so that other work could continue.
    """,
    examples(
        ("lakesync dlq list", "all dead letters of a gateway"),
        ("lakesync dlq list --app app.db", "rejected changes and failed actions of an app"),
        ("lakesync dlq retry --all", "after the cause was removed"),
    ),
)


Id = Annotated[str | None, typer.Argument(metavar="ID", help="Id of a dead letter, as `lakesync dlq list` prints it.")]
App = Annotated[Path | None, typer.Option("--app", help="Database of an app, instead of a gateway.")]
All = Annotated[bool, typer.Option("--all", help="Select all: of a gateway those of kind work, of an app every one.")]


@dlq_app.command(
    "list",
    epilog=examples(
        ("lakesync dlq list --gateway shop", "one gateway"),
        ("lakesync dlq list --kind value --json", "one kind, as JSON"),
    ),
)
def list_(
    kind: Annotated[dead_letters.Kind | None, typer.Option(help="List only this kind; default: all.")] = None,
    app_file: App = None,
    *,
    options: ConnectionOptions,
    as_json: Json = False,
) -> None:
    """List dead letters.

    Pending work is not listed, even if it waits in staging because its queue cannot be reached. Destination tables are
    behind then. The gateway logs a warning, and its next flush moves the work to the queue.
    """
    letters, errors = _read_letters(kind, app_file, options)
    columns = ("id", "kind", "table", "what", "why")
    output.print_rows(letters, as_json=as_json, columns=columns, if_empty="" if errors else "no dead letters")
    exit_codes.exit_if_incomplete([str(error) for error in errors], as_json=as_json)


@dlq_app.command(epilog=examples(("lakesync dlq show todos/t1/done", "a value, and the type of its column")))
def show(
    letter_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of a dead letter, as `lakesync dlq list` prints it.")
    ],
    app_file: App = None,
    *,
    options: ConnectionOptions,
    as_json: Json = False,
) -> None:
    """Show a dead letter in full, with its remedy."""
    letters, errors = _read_letters(None, app_file, options)
    chosen = next((each for each in letters if each["id"] == letter_id), None)
    if chosen is None and errors:
        raise errors[0]  # the dead letter may be in a place that did not answer
    if chosen is None:
        raise NotFoundError(f"there is no dead letter {letter_id!r}; `lakesync dlq list` lists them")
    output.print_fields(chosen, as_json=as_json)


@dlq_app.command(
    epilog=examples(("lakesync dlq retry --all", ""), ("lakesync dlq retry 01a2…-shop.main.1.7-9.todos", "one"))
)
def retry(
    letter_id: Id = None,
    app_file: App = None,
    *,
    options: ConnectionOptions,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """Retry dead letters.

    Work returns to its queue. A table of a destination or flow is written again by its next run, which is requested
    if Dagster is known. An app sends edits and actions again at its next sync. A value needs no retry: it
    disappears when the row gets a value that fits, or when the table is rebuilt.
    """
    _check_selection(letter_id, everything=everything)
    if letter_id is not None and app_file is None and dead_letters.is_of_destination(letter_id):
        _retry_destination(letter_id, options.settings, as_json=as_json)
    else:
        _retry_or_drop("retry", letter_id, app_file, options, as_json=as_json)


@dlq_app.command(epilog=examples(("lakesync dlq drop 01a2…-shop.main.1.7-9.todos --yes", "without changing the table")))
def drop(
    letter_id: Id = None,
    app_file: App = None,
    *,
    options: ConnectionOptions,
    everything: All = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Drop dead letters.

    Of a gateway, only work can be dropped: the affected rows at the destination stay unchanged until they are written
    again. In an app, a dropped change is reverted.
    """
    _check_selection(letter_id, everything=everything)
    output.confirm(f"Drop {letter_id or ('all work' if app_file is None else 'all dead letters')}?", assume_yes=yes)
    _retry_or_drop("drop", letter_id, app_file, options, as_json=as_json)


def _read_letters(
    kind: dead_letters.Kind | None, app_file: Path | None, options: ConnectionOptions
) -> tuple[list[dead_letters.DeadLetter], list[LakeSyncError]]:
    """Read the dead letters of an app or of a gateway.

    Args:
        kind: a kind of a gateway's dead letters (`--kind`); None for all.
        app_file: the database of an app (`--app`); None for the dead letters of a gateway.
        options: choose the gateway. Without a gateway id, values of all gateways are read.

    Returns:
        The dead letters, and the errors of the places that do not answer: the lake, destinations or the gateway.

    Raises:
        typer.BadParameter: `--kind` was given with `--app`.
        ConfigurationError: the file is not an app's database.
        LakeSyncError: no place answers.
    """
    if app_file is not None:
        if kind is not None:
            raise typer.BadParameter("--kind does not apply to --app; an app has edits and actions only")
        return dead_letters.app_dead_letters(app_file), []
    config = options.settings
    return dead_letters.dead_letters_of_gateway(kind, config, options.gateway or config.remote.gateway, options.connect)


def _check_selection(letter_id: str | None, *, everything: bool) -> None:
    """Raise typer.BadParameter unless an id or `--all` was given, and not both."""
    if (letter_id is None) is not everything:
        raise typer.BadParameter("give one ID or --all")


def _retry_or_drop(
    method: dead_letters.Method,
    letter_id: str | None,
    app_file: Path | None,
    options: ConnectionOptions,
    *,
    as_json: bool,
) -> None:
    """Retry or drop one dead letter of an app or of kind `work`, and print its id; all of them if `letter_id` is None.

    Raises:
        ValidationError: the dead letter is of another kind.
        LakeSyncError: there is no such dead letter, or it cannot be changed.
    """
    if app_file is not None:
        changed = dead_letters.retry_or_drop_in_app(app_file, method, letter_id)
    else:
        changed = dead_letters.retry_or_drop_updates(options.connect, method, letter_id)
    count = 0
    for each, report in changed:
        count += 1
        output.print_line(f"{dead_letters.PAST_TENSES[method]} {each}", report, as_json=as_json)
    if not count:
        output.note("no dead letters")


def _retry_destination(letter_id: str, config: Config, *, as_json: bool) -> None:
    """Let a destination or flow write a table again, and request a run of its asset if Dagster is known."""
    from lakesync.cli.dagster_client import DagsterClient, dagster_url
    from lakesync.engine.standalone_engine import log_to_stderr

    log_to_stderr()
    writer = dead_letters.retry_destination(config, letter_id)
    asset, url = writer.asset, dagster_url(config)
    run_id = DagsterClient(url).materialise(asset, writer.job, "lakesync dlq retry") if url is not None else None
    if as_json:
        output.print_json({"retried": letter_id, "asset": asset, "runId": run_id})
        return
    print(f"retried {letter_id}")
    output.note(f"{url}/runs/{run_id}" if url is not None else f"the next run of {asset} writes the rows")
