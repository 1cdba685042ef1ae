"""`lakesync dlq`: lists, retries and drops dead letters, which were set aside so that other work could continue.

A gateway has three kinds. `value` is a live value that does not fit its column; it is in the lake's table `rejected`.
`destination` is a table or value that a declared destination cannot store. `work` is an update of a destination table
that failed after a flush of a gateway without a pipeline. An app has two kinds, in its own database (`--app`): `edit`,
a change that the gateway rejected, and `action`, an action that failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url, Yes, load_settings
from lakesync.cli.remote import dlq_destinations

if TYPE_CHECKING:
    from lakesync.model.errors import LakeSyncError

app = command_app(
    "List, retry and drop dead letters.",
    examples(
        ("lakesync dlq list", "all dead letters of a gateway"),
        ("lakesync dlq list --app app.db", "rejected changes and failed actions of an app"),
        ("lakesync dlq retry --all", "after the cause was removed"),
    ),
)

KINDS = ("value", "work", "destination")
"""The kinds of a gateway's dead letters, for `--kind`."""


def _completed_kinds(incomplete: str) -> list[str]:
    """Return the kinds that begin with a text, for the shell's completion."""
    return [name for name in KINDS if name.startswith(incomplete)]


Id = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="Id of a dead letter, as `lakesync dlq list` prints it.", show_default=False),
]
App = Annotated[
    Path | None,
    typer.Option("--app", help="Database of an app, instead of a gateway.", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="Select all: of a gateway those of kind work, of an app every one.")]


@app.callback()
def dlq() -> None:
    """List, retry and drop dead letters.

    They are values, tables and work that were set aside so that other work could continue.
    """


@app.command(
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
            help="value, work or destination; default: all.", show_default=False, autocompletion=_completed_kinds
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
    """List dead letters."""
    if kind not in (None, *KINDS):
        raise typer.BadParameter(f"--kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    letters, errors = _app_letters(app_file, kind) or _gateway_letters(kind, url, gateway, token_file, data)
    columns = ("id", "kind", "table", "what", "why")
    output.records(letters, as_json=as_json, columns=columns, none="" if errors else "no dead letters")
    for error in errors:
        exit_codes.report_unanswered(str(error), as_json=as_json)
    if errors:
        raise typer.Exit(exit_codes.ExitCode.PARTIAL)


@app.command(epilog=examples(("lakesync dlq show todos/t1/done", "a value, and the type of its column")))
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
    from lakesync.model.errors import NotFoundError

    letters, errors = _app_letters(app_file, None) or _gateway_letters(None, url, gateway, token_file, data)
    chosen = next((each for each in letters if each["id"] == letter_id), None)
    if chosen is None and errors:
        raise errors[0]  # the dead letter may be in the part that did not answer
    if chosen is None:
        raise NotFoundError(f"there is no dead letter {letter_id!r}; `lakesync dlq list` lists them")
    output.fields(chosen, as_json=as_json)


@app.command(
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
    requested if Dagster is known. An app sends its letters again at its next sync. A value needs no retry: it
    disappears when the row gets a value that fits, or when the table is rebuilt.
    """
    if app_file is not None:
        _act_on_app(app_file, "retry", letter_id, everything=everything, as_json=as_json)
    elif letter_id is not None and dlq_destinations.is_destination_letter(letter_id):
        _retry_destination(letter_id, data, as_json=as_json)
    else:
        _act_on_work("retry", letter_id, url, gateway, token_file, data, everything=everything, as_json=as_json)


@app.command(epilog=examples(("lakesync dlq drop 01a2…-shop.main.1.7-9.todos --yes", "without changing the table")))
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
    what = "all dead letters" if everything else f"{letter_id}"
    output.confirm(f"Drop {what}?", yes=yes)
    if app_file is not None:
        _act_on_app(app_file, "drop", letter_id, everything=everything, as_json=as_json)
    else:
        _act_on_work("drop", letter_id, url, gateway, token_file, data, everything=everything, as_json=as_json)


def _retry_destination(letter_id: str, data: Path | None, *, as_json: bool) -> None:
    """Have a destination write a table again, and request a run of its asset if Dagster is known."""
    from lakesync.cli.dagster_client import DagsterClient, dagster_url

    config = load_settings(data)
    asset = dlq_destinations.retry(config, letter_id)
    url = dagster_url(config)
    result: dict[str, Any] = {"retried": letter_id, "asset": asset, "runId": None}
    if url is not None:
        result["runId"] = DagsterClient(url).materialise(asset, "destinations", "lakesync dlq retry")
    if as_json:
        output.record(result)
        return
    print(f"retried {letter_id}")
    output.note(f"{url}/runs/{result['runId']}" if url is not None else f"the next run of {asset} writes the rows")


def _app_letters(app_file: Path | None, kind: str | None) -> tuple[list[dict[str, Any]], list[LakeSyncError]] | None:
    """Return the dead letters of an app's database, and no errors; None if `--app` was not given.

    Raises:
        typer.BadParameter: `--kind` was given, which does not apply.
        ConfigurationError: the file is not an app's database.
    """
    from lakesync.cli.remote import dlq_app

    if app_file is None:
        return None
    if kind is not None:
        raise typer.BadParameter("--kind does not apply to --app; an app has edits and actions only")
    return dlq_app.entries(app_file), []


def _act_on_app(
    app_file: Path, method: Literal["retry", "drop"], letter_id: str | None, *, everything: bool, as_json: bool
) -> None:
    """Retry or drop one dead letter of an app's database, or all of them, and print their ids."""
    from lakesync.cli.remote import dlq_app

    if (letter_id is None) is not everything:
        raise typer.BadParameter("give one ID or --all")
    past_tense = _PAST_TENSES[method]
    ids = dlq_app.act(app_file, method, letter_id)
    for each in ids:
        if as_json:
            output.record({past_tense: each})
        else:
            print(f"{past_tense} {each}")
    if not ids:
        output.note("no dead letters")


_PAST_TENSES = {"retry": "retried", "drop": "dropped"}


def _act_on_work(
    method: Literal["retry", "drop"],
    letter_id: str | None,
    url: str | None,
    gateway: str | None,
    token_file: Path | None,
    data: Path | None,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    """Retry or drop one dead letter of kind `work` at a gateway, or all of them, and print their ids.

    Raises:
        ValidationError: the dead letter is of another kind.
        typer.BadParameter: neither an id nor `--all` was given, or both.
        LakeSyncError: the gateway does not answer, or has no such dead letter.
    """
    from lakesync.cli.connection import connect
    from lakesync.model.errors import ValidationError

    if (letter_id is None) is not everything:
        raise typer.BadParameter("give one ID or --all")
    past_tense = _PAST_TENSES[method]
    if letter_id is not None and dlq_destinations.is_destination_letter(letter_id):
        raise ValidationError(
            f"{letter_id!r} is a destination's dead letter, which cannot be {past_tense}; remove the cause and run "
            "`lakesync dlq retry`"
        )
    if letter_id is not None and "/" in letter_id:
        raise ValidationError(
            f"{letter_id!r} is a value, which cannot be {past_tense}; push a value that fits its column, or change the "
            "schema and rebuild the table with `lakesync backfill tables/TABLE`"
        )
    remote = connect(url, gateway, token_file, data)
    ids = [str(letter_id)]
    if everything:
        ids = [each["id"] for each in _work_letters(remote.get("/admin/dead-letters/{gateway}"))]
    for each in ids:
        path = f"/admin/dead-letters/{{gateway}}/{quote(each, safe='')}"
        response = remote.post(path) if method == "retry" else remote.delete(path)
        if as_json:
            output.record(response)
        else:
            print(f"{past_tense} {each}")
    if not ids:
        output.note("no dead letters")


def _gateway_letters(
    kind: str | None, url: str | None, gateway: str | None, token_file: Path | None, data: Path | None
) -> tuple[list[dict[str, Any]], list[LakeSyncError]]:
    """Return the dead letters of lake, destinations and gateway, and the errors of those that do not answer.

    Args:
        kind: one of KINDS; None for all.
        url: the gateway's URL (`--url`); None for that of the settings.
        gateway: the gateway's id (`--gateway`); None for that of the settings, or values of all gateways.
        token_file: the file with an admin's token (`--token-file`); None for LAKESYNC_TOKEN, or a new token.
        data: the data folder (`--data`); None for that of the settings.

    Raises:
        LakeSyncError: none of them answers.
    """
    from lakesync.cli.connection import connect
    from lakesync.model.errors import LakeSyncError

    letters: list[dict[str, Any]] = []
    errors: list[LakeSyncError] = []
    if kind in (None, "value"):
        try:
            letters += _value_letters(data, gateway)
        except LakeSyncError as error:
            errors.append(error)
    if kind in (None, "destination"):
        config = load_settings(data)
        destination_letters, unanswered = dlq_destinations.entries(config, gateway or config.remote.gateway)
        letters, errors = [*letters, *destination_letters], [*errors, *unanswered]
    if kind in (None, "work"):
        try:
            letters += _work_letters(connect(url, gateway, token_file, data).get("/admin/dead-letters/{gateway}"))
        except LakeSyncError as error:
            errors.append(error)
    if errors and not letters and len(errors) >= (1 if kind else 2):
        raise errors[-1]
    return letters, errors


def _work_letters(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the dead letters of kind `work` from the gateway's response."""
    for each in response["deadLetters"]:
        yield {
            "id": each["jobId"],
            "kind": "work",
            "table": each["table"],
            "what": f"{len(each['rowIds'])} rows of batch {each['batchId']}, tried {each['attempts']} times",
            "why": each["failure"],
            "remedy": "repair the destination, then run `lakesync dlq retry`",
            "rowIds": each["rowIds"],
        }


def _value_letters(data: Path | None, gateway: str | None) -> Iterator[dict[str, Any]]:
    """Yield the dead letters of kind `value`: the rows of the lake's table `rejected`.

    Nothing if no catalogue is configured here.

    Args:
        data: the data folder (`--data`); None for that of the settings.
        gateway: only values of this gateway; None for that of the settings, else of all gateways.
    """
    from lakesync.analysis.catalogue import LakeReader, may_have_catalogue

    config = load_settings(data)
    if not may_have_catalogue(config):
        return
    with LakeReader(config) as lake:
        rows = [] if lake.rejected is None else lake.rejected.scan().to_arrow().to_pylist()
    chosen = gateway or config.remote.gateway
    for row in rows:
        if chosen not in (None, row["gateway"]):
            continue
        yield {
            "id": f"{row['table_name']}/{row['row_id']}/{row['column_name']}",
            "kind": "value",
            "table": row["table_name"],
            "what": f"{row['column_name']} = {row['value']} of row {row['row_id']}",
            "why": f"the column has type {row['type']}; the state table has null",
            "remedy": "push a value that fits; the history and the clients keep this one",
            "gateway": row["gateway"],
        }
