"""`lakesync dlq`: lists, retries and drops dead letters, which were set aside so that other work could continue.

A gateway has three kinds. `value` is a row's current value that does not fit its column. `destination` is a table or
value that a declared destination cannot store. `work` is an update of a destination table that failed after a flush of
a gateway without a pipeline. An app has two kinds, in its own database (`--app`): `edit`, a change that the gateway
rejected, and `action`, an action that failed. `dead_letters` reads and changes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.app import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url, Yes, load_settings
from lakesync.cli.remote import dead_letters
from lakesync.model.errors import NotFoundError

if TYPE_CHECKING:
    from lakesync.model.errors import LakeSyncError

dlq_app = command_app(
    "List, retry and drop dead letters.",
    examples(
        ("lakesync dlq list", "all dead letters of a gateway"),
        ("lakesync dlq list --app app.db", "rejected changes and failed actions of an app"),
        ("lakesync dlq retry --all", "after the cause was removed"),
    ),
)


def _complete_kinds(incomplete: str) -> list[str]:
    """Return the kinds that begin with a text, for the shell's completion."""
    return [name for name in dead_letters.KINDS if name.startswith(incomplete)]


Id = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="Id of a dead letter, as `lakesync dlq list` prints it.", show_default=False),
]
App = Annotated[
    Path | None,
    typer.Option("--app", help="Database of an app, instead of a gateway.", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="Select all: of a gateway those of kind work, of an app every one.")]


@dlq_app.callback()
def dlq() -> None:
    """List, retry and drop dead letters.

    They are values, tables and work that were set aside so that other work could continue.
    """


@dlq_app.command(
    "list",
    epilog=examples(
        ("lakesync dlq list --gateway shop", "one gateway"),
        ("lakesync dlq list --kind value --json", "one kind, as JSON"),
    ),
)
def list_(
    kind: Annotated[
        str | None,
        typer.Option(
            help="value, work or destination; default: all.", show_default=False, autocompletion=_complete_kinds
        ),
    ] = None,
    app_file: App = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """List dead letters.

    Pending work is not listed, even if it waits in staging because its queue cannot be reached. Destination tables are
    behind then. The gateway logs a warning, and its next flush moves the work to the queue.
    """
    if kind not in (None, *dead_letters.KINDS):
        raise typer.BadParameter(f"--kind is {kind!r}; it must be one of {', '.join(dead_letters.KINDS)}")
    letters, errors = _letters(kind, app_file, url, gateway, token_file, data)
    columns = ("id", "kind", "table", "what", "why")
    output.records(letters, as_json=as_json, columns=columns, none="" if errors else "no dead letters")
    for error in errors:
        exit_codes.report_unanswered(str(error), as_json=as_json)
    if errors:
        raise typer.Exit(exit_codes.ExitCode.PARTIAL)


@dlq_app.command(epilog=examples(("lakesync dlq show todos/t1/done", "a value, and the type of its column")))
def show(
    letter_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Id of a dead letter, as `lakesync dlq list` prints it.", show_default=False),
    ],
    app_file: App = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Show a dead letter in full, with its remedy."""
    letters, errors = _letters(None, app_file, url, gateway, token_file, data)
    chosen = next((each for each in letters if each["id"] == letter_id), None)
    if chosen is None and errors:
        raise errors[0]  # the dead letter may be in a place that did not answer
    if chosen is None:
        raise NotFoundError(f"there is no dead letter {letter_id!r}; `lakesync dlq list` lists them")
    output.fields(chosen, as_json=as_json)


@dlq_app.command(
    epilog=examples(("lakesync dlq retry --all", ""), ("lakesync dlq retry 01a2…-shop.main.1.7-9.todos", "one"))
)
def retry(
    letter_id: Id = None,
    app_file: App = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """Retry dead letters.

    Work returns to its queue. A table of a destination is written again by the destination's next run, which is
    requested if Dagster is known. An app sends edits and actions again at its next sync. A value needs no retry: it
    disappears when the row gets a value that fits, or when the table is rebuilt.
    """
    _check_selection(letter_id, everything=everything)
    if letter_id is not None and app_file is None and dead_letters.is_of_destination(letter_id):
        _retry_destination(letter_id, data, as_json=as_json)
    else:
        _retry_or_drop("retry", letter_id, app_file, url, gateway, token_file, data, as_json=as_json)


@dlq_app.command(epilog=examples(("lakesync dlq drop 01a2…-shop.main.1.7-9.todos --yes", "without changing the table")))
def drop(
    letter_id: Id = None,
    app_file: App = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    everything: All = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Drop dead letters.

    The affected rows at the destination stay unchanged until they are written again. In an app, a dropped change is
    reverted.
    """
    _check_selection(letter_id, everything=everything)
    output.confirm(f"Drop {letter_id or 'all dead letters'}?", assume_yes=yes)
    _retry_or_drop("drop", letter_id, app_file, url, gateway, token_file, data, as_json=as_json)


def _letters(
    kind: str | None,
    app_file: Path | None,
    url: str | None,
    gateway: str | None,
    token_file: Path | None,
    data: Path | None,
) -> tuple[list[dead_letters.DeadLetter], list[LakeSyncError]]:
    """Return the dead letters of an app; or those of a gateway, with the errors of places that do not answer.

    These places are the lake, the declared destinations and the gateway.

    Args:
        kind: a kind of a gateway's dead letters (`--kind`); None for all.
        app_file: the database of an app (`--app`); None for the dead letters of a gateway.
        url: the gateway's URL (`--url`); None for that of the settings.
        gateway: the gateway's id (`--gateway`); None for that of the settings, or values of all gateways.
        token_file: the file with an admin's token (`--token-file`); None for LAKESYNC_TOKEN, or a new token.
        data: the data folder (`--data`); None for that of the settings.

    Raises:
        typer.BadParameter: `--kind` was given with `--app`.
        ConfigurationError: the file is not an app's database.
        LakeSyncError: no place answers.
    """
    from lakesync.cli.connection import connect

    if app_file is not None:
        if kind is not None:
            raise typer.BadParameter("--kind does not apply to --app; an app has edits and actions only")
        return dead_letters.dead_letters_of_app(app_file), []
    config = load_settings(data)
    return dead_letters.dead_letters_of_gateway(
        kind, config, gateway or config.remote.gateway, partial(connect, url, gateway, token_file, data)
    )


def _check_selection(letter_id: str | None, *, everything: bool) -> None:
    """Raise typer.BadParameter unless either an id or `--all` was given."""
    if (letter_id is None) is not everything:
        raise typer.BadParameter("give one ID or --all")


def _retry_or_drop(
    method: dead_letters.Method,
    letter_id: str | None,
    app_file: Path | None,
    url: str | None,
    gateway: str | None,
    token_file: Path | None,
    data: Path | None,
    *,
    as_json: bool,
) -> None:
    """Retry or drop a dead letter of an app or of kind `work`, or all of them (None), and print their ids.

    Raises:
        ValidationError: the dead letter is of another kind.
        LakeSyncError: there is no such dead letter, or it cannot be changed.
    """
    from lakesync.cli.connection import connect

    past_tense = dead_letters.PAST_TENSES[method]
    changed: Iterable[tuple[str, Any]]
    if app_file is not None:
        changed = (
            (each, {past_tense: each}) for each in dead_letters.retry_or_drop_of_app(app_file, method, letter_id)
        )
    else:
        changed = dead_letters.retry_or_drop_updates(
            partial(connect, url, gateway, token_file, data), method, letter_id
        )
    count = 0
    for each, report in changed:
        count += 1
        if as_json:
            output.record(report)
        else:
            print(f"{past_tense} {each}")
    if not count:
        output.note("no dead letters")


def _retry_destination(letter_id: str, data: Path | None, *, as_json: bool) -> None:
    """Let a destination write a table again, and request a run of its asset if Dagster is known."""
    from lakesync.cli.dagster_client import DagsterClient, dagster_url

    config = load_settings(data)
    asset = dead_letters.retry_destination(config, letter_id)
    url = dagster_url(config)
    run_id = DagsterClient(url).materialise(asset, "destinations", "lakesync dlq retry") if url is not None else None
    if as_json:
        output.record({"retried": letter_id, "asset": asset, "runId": run_id})
        return
    print(f"retried {letter_id}")
    output.note(f"{url}/runs/{run_id}" if url is not None else f"the next run of {asset} writes the rows")
