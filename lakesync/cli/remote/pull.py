"""`lakesync pull` and `lakesync tail`: what a client may see, and how that changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import completion, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Claim, Data, Gateway, Json, TokenFile, Url, named_claims

if TYPE_CHECKING:
    from lakesync.cli.connection import Remote

pull_app, tail_app = command_app(), command_app()

_PAGE = 1000
_LOOK_SECONDS = 0.5
"""Between two looks of a tail."""
_TAIL_SECONDS = 86_400.0
"""For how long a token is good that is made for a tail."""
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0
"""Seconds until a gateway is asked again that does not answer."""
_COLUMNS = ("arrived=written", "clientId=client", "op", "table", "rowId=row", "values")

Client = Annotated[
    str | None, typer.Option("--client", "-c", help="As whom; else the token's sub.", show_default=False)
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", help="Only this table's; may be repeated.", autocompletion=completion.tables),
]
Limit = Annotated[int | None, typer.Option(help="End after so many.", min=1, show_default=False)]


@pull_app.command(
    epilog=examples(
        ("lakesync pull --client alice", "all that she may see"),
        ("lakesync pull --client bob --claim team=red", "where the rules read a claim"),
        ("lakesync pull --client alice --table todos --json > todos.jsonl", "a delta a line; they can be pushed again"),
        ("lakesync pull --client alice --since 1-114000000000000000", "what came since"),
        ("lakesync pull --client alice --as-app", "what her app would be sent, in its place"),
    )
)
def pull(
    client: Client = None,
    since: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Show what changed since: the cursor that was printed last.")
    ] = None,
    limit: Limit = None,
    table: Tables = None,
    claim: Claim = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_app: Annotated[
        bool,
        typer.Option(
            "--as-app",
            help="Pull in place of the client's app. Changes what the app is sent next: the gateway counts these rows "
            "as sent, and sends the app in doubt DELETE and INSERT of them.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the rows that a client may see, without changing anything.

    The rules apply with the client's claims. The rows that the client wrote itself are shown too. The gateway does not
    take this for the client's app: that receives what it would have received without it. The cursor for --since is
    printed on stderr.
    """
    from lakesync.cli.connection import connect

    remote = connect(url, gateway, token_file, data, role="client", client=client, claims=named_claims(claim))
    who = client or remote.client_id
    cursor: list[str] = []
    found = _as_app(remote, who, since, limit, cursor) if as_app else _seen(remote, who, since, limit, cursor)
    output.records(_told(found, table, as_json=as_json), as_json=as_json, columns=_COLUMNS, none="no rows")
    output.note(f"cursor: {cursor[-1]}")


@tail_app.command(
    epilog=examples(
        ("lakesync tail --client alice", "what changes from now on"),
        ("lakesync tail --client alice --from-start --json", "what is there first; a delta a line"),
    )
)
def tail(
    client: Client = None,
    limit: Limit = None,
    seconds: Annotated[float | None, typer.Option(help="End after so long.", min=0, show_default=False)] = None,
    table: Tables = None,
    claim: Claim = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    from_start: Annotated[bool, typer.Option("--from-start", help="Show what is there already, too.")] = False,
    as_json: Json = False,
) -> None:
    """Show changes of what a client may see, until Ctrl-C.

    Rows that move into the client's sight or out of it are shown too. A gateway that does not answer is asked again,
    and no row is left out; of several changes of a row within half a second, the last is shown. The client's app
    receives what it would have received without it.
    """
    from lakesync.cli.connection import connect

    remote = connect(
        url, gateway, token_file, data, role="client", client=client, claims=named_claims(claim), seconds=_TAIL_SECONDS
    )
    who = client or remote.client_id
    left = limit
    for each in _told(_changes(remote, who, seconds, from_start=from_start), table, as_json=as_json):
        _show(each, as_json=as_json)
        left = None if left is None else left - 1
        if left == 0:
            return


def _told(deltas: Iterable[dict[str, Any]], tables: list[str] | None, *, as_json: bool) -> Iterator[dict[str, Any]]:
    """Deltas in the wire's form, for people with their values side by side."""
    import msgspec

    from lakesync.model.hlc import wall_of

    for delta in deltas:
        if tables and delta["table"] not in tables:
            continue
        if as_json:
            yield delta
        else:
            cells = (f"{each['column']}={msgspec.json.encode(each['value']).decode()}" for each in delta["columns"])
            written = output.moment(wall_of(int(delta["hlc"])))
            yield {**delta, "arrived": written, "values": ", ".join(cells)}


def _seen(
    remote: Remote, who: str, since: str | None, limit: int | None, cursor: list[str]
) -> Iterator[dict[str, Any]]:
    """What the client may see, page after page; `cursor` gets the cursor of each."""
    left, more = limit, True
    while more and left != 0:
        page = remote.get("/sync/{gateway}/peek", clientId=who, since=since, limit=min(_PAGE, left or _PAGE))
        cursor.append(page["cursor"])
        yield from page["deltas"]
        since, more = page["cursor"], page["hasMore"]
        left = None if left is None else max(0, left - len(page["deltas"]))


def _as_app(
    remote: Remote, who: str, since: str | None, limit: int | None, cursor: list[str]
) -> Iterator[dict[str, Any]]:
    """What the client lacks, sent to it; `cursor` gets the cursor of each page.

    Raises:
        typer.BadParameter: `since` is no cursor of a pull.
    """
    import msgspec

    from lakesync.model.types import SyncPull
    from lakesync.wire.json import encode_delta

    if since is not None and not (since.isascii() and since.isdigit() and len(since) < 20):
        raise typer.BadParameter(f"--since {since!r} is no cursor of the app's: that is a whole number")
    at, left, more = int(since or 0), limit, True
    transport = remote.transport()
    while more and left != 0:
        page = transport.pull(SyncPull(who, at, min(_PAGE, left or _PAGE)))
        at, more = page.server_hlc, page.has_more
        cursor.append(str(at))
        yield from (msgspec.json.decode(encode_delta(delta)) for delta in page.deltas)
        left = None if left is None else max(0, left - len(page.deltas))
    transport.close()


def _changes(remote: Remote, who: str, seconds: float | None, *, from_start: bool) -> Iterator[dict[str, Any]]:
    """What there is, where that is wanted, then what changes.

    Raises:
        UnreachableError: the gateway does not answer the first look.
    """
    from lakesync.model.errors import ResyncRequiredError, TransientError

    deadline = float("inf") if seconds is None else time.monotonic() + seconds
    cursor: list[str] = []
    yield from _seen(remote, who, None if from_start else "now", None, cursor)
    if not from_start:
        output.note(f"at {cursor[-1]}; waiting for changes")
    wait = _FIRST_WAIT
    while time.monotonic() < deadline:
        try:
            yield from _seen(remote, who, cursor[-1], None, cursor)
        except TransientError as error:
            output.note(f"{error}; trying again in {wait:g} s")
            _sleep(wait, deadline)
            wait = min(_LONGEST_WAIT, 2 * wait)
        except ResyncRequiredError:
            output.note("the rules changed: what they show is shown from the start")
            yield from _seen(remote, who, None, None, cursor)
        else:
            wait = _FIRST_WAIT
            _sleep(_LOOK_SECONDS, deadline)


def _sleep(seconds: float, deadline: float) -> None:
    time.sleep(max(0.0, min(seconds, deadline - time.monotonic())))


def _show(each: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.record(each)
    else:
        place = f"{each['table']}/{each['rowId']}"
        print(f"{each['arrived']}  {each['clientId']}  {each['op']:<6}  {place}  {each['values']}")
    sys.stdout.flush()
