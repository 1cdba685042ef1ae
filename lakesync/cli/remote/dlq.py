"""`lakesync dlq`: what was set aside, so that the rest could go on.

Three kinds of a gateway. `value` is a live value that does not fit its column, kept in the lake's table `rejected`.
`destination` is a table or a value that a declared destination cannot take. `work` is a destination's table that could
not be brought in line after a flush of a gateway without a pipeline. Two kinds of an app, in its own file (`--app`):
`edit`, a change that the gateway refused; and `action`, one that failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url, Yes, settings
from lakesync.cli.remote import dlq_destinations

if TYPE_CHECKING:
    from lakesync.model.errors import LakeSyncError

app = command_app(
    "Look at what was set aside: values that fit no column, work that failed.",
    examples(
        ("lakesync dlq list", "all of a gateway"),
        ("lakesync dlq list --app app.db", "refused changes and failed actions of an app"),
        ("lakesync dlq retry --all", "once the cause is gone"),
    ),
)

KINDS = ("value", "work", "destination")


def _completed_kinds(incomplete: str) -> list[str]:
    return [name for name in KINDS if name.startswith(incomplete)]


Id = Annotated[str | None, typer.Argument(metavar="ID", help="As the list tells it.", show_default=False)]
App = Annotated[
    Path | None,
    typer.Option(
        "--app", help="An app's database: what its client set aside, instead of a gateway.", show_default=False
    ),
]
All = Annotated[bool, typer.Option("--all", help="Everything of the gateway that can be.")]


@app.callback()
def dlq() -> None:
    """Look at what was set aside: values that fit no column, work that failed."""


@app.command(
    "list",
    epilog=examples(
        ("lakesync dlq list --gateway shop", "values of the lake, work of the gateway"),
        ("lakesync dlq list --kind value --json", "only the lake's"),
    ),
)
def list_(
    kind: Annotated[
        str | None,
        typer.Option(
            help="value, work or destination; all unless given.", show_default=False, autocompletion=_completed_kinds
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
    """List what was set aside."""
    if kind not in (None, *KINDS):
        raise typer.BadParameter(f"--kind is {kind!r}, it must be one of {', '.join(KINDS)}")
    found, why = _of_app(app_file, kind) or _all(kind, url, gateway, token_file, data)
    output.records(
        found, as_json=as_json, columns=("id", "kind", "table", "what", "why"), none="" if why else "nothing"
    )
    for each in why:
        exit_codes.unanswered(str(each), as_json=as_json)
    if why:
        raise typer.Exit(exit_codes.ExitCode.PARTIAL)


@app.command(epilog=examples(("lakesync dlq show todos/t1/done", "the value, and what its column takes")))
def show(
    entry: Annotated[str, typer.Argument(metavar="ID", help="As the list tells it.", show_default=False)],
    app_file: App = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Show one in full, and what mends it."""
    from lakesync.model.errors import NotFoundError

    found, why = _of_app(app_file, None) or _all(None, url, gateway, token_file, data)
    chosen = next((each for each in found if each["id"] == entry), None)
    if chosen is None and why:
        raise why[0]  # it may be there
    if chosen is None:
        raise NotFoundError(f"nothing with the id {entry!r} was set aside; `lakesync dlq list` tells what was")
    output.facts(chosen, as_json=as_json)


@app.command(
    epilog=examples(("lakesync dlq retry --all", ""), ("lakesync dlq retry 01a2…-shop.main.1.7-9.todos", "one"))
)
def retry(
    entry: Id = None,
    app_file: App = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """Put work back into the queue, as if it were new; of an app, what is then sent when it synchronises next.

    A value needs no retry: it leaves the list when the row gets one that fits, or the table is made again. The rows of
    a destination's table are written again by the destination's next run, which is requested where Dagster is known.
    """
    if app_file is not None:
        _act_on_app(app_file, "retried", entry, everything=everything, as_json=as_json)
    elif entry is not None and dlq_destinations.is_entry(entry):
        _retry_destination(entry, data, as_json=as_json)
    else:
        _act("POST", "retried", entry, url, gateway, token_file, data, everything=everything, as_json=as_json)


@app.command(epilog=examples(("lakesync dlq drop 01a2…-shop.main.1.7-9.todos --yes", "the table stays as it is")))
def drop(
    entry: Id = None,
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
    """Forget work. The rows that it was about stay as they are at the destination until they change again.

    Of an app, a change is taken back: its row is as if it had never been made.
    """
    what = "all that was set aside" if everything else f"{entry}"
    output.confirm(f"Drop {what}?", yes=yes)
    if app_file is not None:
        _act_on_app(app_file, "dropped", entry, everything=everything, as_json=as_json)
    else:
        _act("DELETE", "dropped", entry, url, gateway, token_file, data, everything=everything, as_json=as_json)


def _retry_destination(entry: str, data: Path | None, *, as_json: bool) -> None:
    from lakesync.cli.dagster_client import Dagster, dagster_url

    config = settings(data)
    asset = dlq_destinations.retry(config, entry)
    url = dagster_url(config)
    told: dict[str, Any] = {"retried": entry, "asset": asset, "runId": None}
    if url is not None:
        told["runId"] = Dagster(url).materialise(asset, "destinations", "lakesync dlq retry")
    if as_json:
        output.record(told)
        return
    print(f"retried {entry}")
    output.note(f"{url}/runs/{told['runId']}" if url is not None else f"the next run of {asset} writes its rows")


def _of_app(app_file: Path | None, kind: str | None) -> tuple[list[dict[str, Any]], list[LakeSyncError]] | None:
    """What an app's database set aside, where one was named."""
    from lakesync.cli.remote import dlq_app

    if app_file is None:
        return None
    if kind is not None:
        raise typer.BadParameter("--kind is of a gateway's: an app's database has edits and actions")
    return dlq_app.entries(app_file), []


def _act_on_app(app_file: Path, done: str, entry: str | None, *, everything: bool, as_json: bool) -> None:
    from lakesync.cli.remote import dlq_app

    if (entry is None) is not everything:
        raise typer.BadParameter("give one ID, or --all")
    act = dlq_app.retry if done == "retried" else dlq_app.drop
    found = act(app_file, entry)
    for each in found:
        if as_json:
            output.record({done: each})
        else:
            print(f"{done} {each}")
    if not found:
        output.note("nothing was set aside")


def _act(
    method: str,
    done: str,
    entry: str | None,
    url: str | None,
    gateway: str | None,
    token_file: Path | None,
    data: Path | None,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    from lakesync.cli.connection import connect
    from lakesync.model.errors import ValidationError

    if (entry is None) is not everything:
        raise typer.BadParameter("give one ID, or --all")
    if entry is not None and "/" in entry:
        raise ValidationError(
            f"{entry!r} is a value: push one that fits its column, or widen the schema and make the table again "
            "(`lakesync backfill tables/TABLE`)"
        )
    remote = connect(url, gateway, token_file, data)
    ids = [each["id"] for each in _work(remote.get("/admin/dead-letters/{gateway}"))] if everything else [str(entry)]
    for each in ids:
        path = f"/admin/dead-letters/{{gateway}}/{quote(each, safe='')}"
        told = remote.post(path) if method == "POST" else remote.delete(path)
        if as_json:
            output.record(told)
        else:
            print(f"{done} {each}")
    if not ids:
        output.note("nothing was set aside")


def _all(
    kind: str | None, url: str | None, gateway: str | None, token_file: Path | None, data: Path | None
) -> tuple[list[dict[str, Any]], list[LakeSyncError]]:
    """What gateway, lake and destinations set aside, and why one of them does not say; the last error of none."""
    from lakesync.cli.connection import connect
    from lakesync.model.errors import LakeSyncError

    found: list[dict[str, Any]] = []
    why: list[LakeSyncError] = []
    if kind in (None, "value"):
        try:
            found += _values(data, gateway)
        except LakeSyncError as error:
            why.append(error)
    if kind in (None, "destination"):
        config = settings(data)
        there, unanswered = dlq_destinations.entries(config, gateway or config.remote.gateway)
        found, why = [*found, *there], [*why, *unanswered]
    if kind in (None, "work"):
        try:
            found += _work(connect(url, gateway, token_file, data).get("/admin/dead-letters/{gateway}"))
        except LakeSyncError as error:
            why.append(error)
    if why and not found and len(why) >= (1 if kind else 2):
        raise why[-1]
    return found, why


def _work(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for each in told["deadLetters"]:
        yield {
            "id": each["jobId"],
            "kind": "work",
            "table": each["table"],
            "what": f"{len(each['rowIds'])} rows of batch {each['batchId']}, tried {each['attempts']} times",
            "why": each["failure"],
            "remedy": "mend the destination, then `lakesync dlq retry`",
            "rowIds": each["rowIds"],
        }


def _values(data: Path | None, gateway: str | None) -> Iterator[dict[str, Any]]:
    """What the lake's table `rejected` holds; nothing where no lake is at hand."""
    from lakesync.analysis.catalogue import LakeReader, may_have_catalogue

    config = settings(data)
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
            "why": f"the column takes {row['type']}; in the state table it is null",
            "remedy": "push a value that fits; the history and the clients have the one that is there",
            "gateway": row["gateway"],
        }
