"""`lakesync pull` and `lakesync tail`: the rows that a client may see, and their changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import completion, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Claim, Client, Data, Gateway, Json, TokenFile, Url, parse_claim_options

if TYPE_CHECKING:
    from lakesync.cli.connection import GatewayConnection

pull_app, tail_app = command_app(), command_app()

_PAGE_SIZE = 1000
_POLL_SECONDS = 0.5
"""Seconds between two requests of a tail."""
_TAIL_SECONDS = 86_400.0
"""Lifetime of the token that a tail signs for itself."""
_FIRST_WAIT, _MAX_WAIT = 1.0, 30.0
"""Seconds until a failed request is retried."""
_COLUMNS = ("arrived=written", "clientId=client", "op", "table", "rowId=row", "values")

Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", help="Show only this table; may be repeated.", autocompletion=completion.tables),
]
Limit = Annotated[
    int | None, typer.Option(help="Stop after this many deltas; default: no limit.", min=1, show_default=False)
]


@pull_app.command(
    epilog=examples(
        ("lakesync pull --client alice", "all rows that Alice may see"),
        ("lakesync pull --client bob --claim team=red", "with a claim that the rules read"),
        ("lakesync pull --client alice --table todos --json > todos.jsonl", "deltas that can be pushed again"),
        ("lakesync pull --client alice --since 1-114000000000000000", "changes since a cursor"),
        ("lakesync pull --client alice --as-app", "pull in place of her app"),
    )
)
def pull(
    client: Client = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="CURSOR", help="Show changes since this cursor, which an earlier pull printed; default: all rows."
        ),
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
            help="Pull in place of the client's app. The gateway then counts these rows as sent to the app.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the rows that a client may see, without side effects.

    Sync rules apply with the client's claims. Rows that the client wrote itself are shown too. The client's app still
    receives the same rows. The cursor for --since is printed on stderr.
    """
    from lakesync.cli.connection import connect

    remote = connect(url, gateway, token_file, data, role="client", client=client, claims=parse_claim_options(claim))
    who = client or remote.client_id
    cursor: list[str] = []
    found = _as_app(remote, who, since, limit, cursor) if as_app else _visible_rows(remote, who, since, limit, cursor)
    output.records(_display_rows(found, table, as_json=as_json), as_json=as_json, columns=_COLUMNS, none="no rows")
    output.note(f"cursor: {cursor[-1]}")


@tail_app.command(
    epilog=examples(
        ("lakesync tail --client alice", "changes from now on"),
        ("lakesync tail --client alice --from-start --json", "existing rows first, as JSON"),
    )
)
def tail(
    client: Client = None,
    limit: Limit = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after this many seconds; default: no limit.", min=0, show_default=False)
    ] = None,
    table: Tables = None,
    claim: Claim = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    from_start: Annotated[bool, typer.Option("--from-start", help="Also show the existing rows.")] = False,
    as_json: Json = False,
) -> None:
    """Print changes to the rows that a client may see.

    Runs until Ctrl-C. Rows that become visible or invisible to the client are printed too. Requests that fail are
    retried without losing changes. Of several changes of a row within half a second, the last one is printed.
    """
    from lakesync.cli.connection import connect

    remote = connect(
        url,
        gateway,
        token_file,
        data,
        role="client",
        client=client,
        claims=parse_claim_options(claim),
        seconds=_TAIL_SECONDS,
    )
    who = client or remote.client_id
    left = limit
    for each in _display_rows(_changes(remote, who, seconds, from_start=from_start), table, as_json=as_json):
        _print_delta(each, as_json=as_json)
        left = None if left is None else left - 1
        if left == 0:
            return


def _display_rows(
    deltas: Iterable[dict[str, Any]], tables: list[str] | None, *, as_json: bool
) -> Iterator[dict[str, Any]]:
    """Yield deltas of the given tables, with a time and a summary of their values unless JSON is wanted."""
    import msgspec

    from lakesync.model.hlc import wall_of

    for delta in deltas:
        if tables and delta["table"] not in tables:
            continue
        if as_json:
            yield delta
        else:
            cells = (f"{each['column']}={msgspec.json.encode(each['value']).decode()}" for each in delta["columns"])
            written = output.utc_time(wall_of(int(delta["hlc"])))
            yield {**delta, "arrived": written, "values": ", ".join(cells)}


def _visible_rows(
    remote: GatewayConnection, who: str, since: str | None, limit: int | None, cursor: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows that the client may see, page by page, and append each page's cursor to `cursor`."""
    left, more = limit, True
    while more and left != 0:
        page = remote.get("/sync/{gateway}/peek", clientId=who, since=since, limit=min(_PAGE_SIZE, left or _PAGE_SIZE))
        cursor.append(page["cursor"])
        yield from page["deltas"]
        since, more = page["cursor"], page["hasMore"]
        left = None if left is None else max(0, left - len(page["deltas"]))


def _as_app(
    remote: GatewayConnection, who: str, since: str | None, limit: int | None, cursor: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield what a pull of the client's app returns, and append each page's cursor to `cursor`.

    Raises:
        typer.BadParameter: `since` is not the cursor of an app.
    """
    import msgspec

    from lakesync.model.types import SyncPull
    from lakesync.wire.json import encode_delta

    if since is not None and not (since.isascii() and since.isdigit() and len(since) < 20):
        raise typer.BadParameter(f"--since is {since!r}; with --as-app it must be the app's cursor, an integer")
    at, left, more = int(since or 0), limit, True
    transport = remote.transport()
    while more and left != 0:
        page = transport.pull(SyncPull(who, at, min(_PAGE_SIZE, left or _PAGE_SIZE)))
        at, more = page.server_hlc, page.has_more
        cursor.append(str(at))
        yield from (msgspec.json.decode(encode_delta(delta)) for delta in page.deltas)
        left = None if left is None else max(0, left - len(page.deltas))
    transport.close()


def _changes(
    remote: GatewayConnection, who: str, seconds: float | None, *, from_start: bool
) -> Iterator[dict[str, Any]]:
    """Yield existing rows if `from_start`, then changes until the deadline.

    Raises:
        UnreachableError: the gateway does not answer the first request.
    """
    from lakesync.model.errors import ResyncRequiredError, TransientError

    deadline = float("inf") if seconds is None else time.monotonic() + seconds
    cursor: list[str] = []
    yield from _visible_rows(remote, who, None if from_start else "now", None, cursor)
    if not from_start:
        output.note(f"at {cursor[-1]}; waiting for changes")
    wait = _FIRST_WAIT
    while time.monotonic() < deadline:
        try:
            yield from _visible_rows(remote, who, cursor[-1], None, cursor)
        except TransientError as error:
            output.note(f"{error}; retrying in {wait:g} s")
            _sleep(wait, deadline)
            wait = min(_MAX_WAIT, 2 * wait)
        except ResyncRequiredError:
            output.note("the sync rules changed; all visible rows are printed again")
            yield from _visible_rows(remote, who, None, None, cursor)
        else:
            wait = _FIRST_WAIT
            _sleep(_POLL_SECONDS, deadline)


def _sleep(seconds: float, deadline: float) -> None:
    time.sleep(max(0.0, min(seconds, deadline - time.monotonic())))


def _print_delta(each: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.record(each)
    else:
        row = f"{each['table']}/{each['rowId']}"
        print(f"{each['arrived']}  {each['clientId']}  {each['op']:<6}  {row}  {each['values']}")
    sys.stdout.flush()
