"""`lakesync pull` and `lakesync tail`: the rows that a client may see, and their changes.

Both read pages of deltas from the gateway's route `peek`. A pull by the client's app makes the gateway remember what it
has sent to the app; `peek` does not. A cursor is the position after a page, where the next page starts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import (
    Claim,
    Client,
    Data,
    Gateway,
    Json,
    TokenFile,
    Url,
    complete_tables,
    parse_claim_options,
)

if TYPE_CHECKING:
    from lakesync.cli.connection import GatewayConnection

pull_app, tail_app = command_app(), command_app()

_PAGE_SIZE = 1000
"""Deltas of one request, at most."""
_POLL_SECONDS = 0.5
"""Seconds between two requests of `tail`."""
_TAIL_TOKEN_SECONDS = 86_400.0
"""Lifetime of the token that `tail` signs for itself."""
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 30.0
"""Delay before the first retry of a failed request; it doubles up to the second value."""
_COLUMNS = ("written", "clientId=client", "op", "table", "rowId=row", "values")
"""Columns of the table, for `output.records`."""

Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", help="Show only this table; may be repeated.", autocompletion=complete_tables),
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
    client_id = client or remote.client_id
    cursors: list[str] = []
    read = _pull_as_app if as_app else _peek
    deltas = read(remote, client_id, since, limit, cursors)
    output.records(_display_rows(deltas, table, as_json=as_json), as_json=as_json, columns=_COLUMNS, none="no rows")
    output.note(f"cursor: {cursors[-1]}")


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
        seconds=_TAIL_TOKEN_SECONDS,
    )
    changes = _changes(remote, client or remote.client_id, seconds, from_start=from_start)
    remaining = limit
    for delta in _display_rows(changes, table, as_json=as_json):
        _print_delta(delta, as_json=as_json)
        remaining = None if remaining is None else remaining - 1
        if remaining == 0:
            return


def _display_rows(
    deltas: Iterable[dict[str, Any]], tables: list[str] | None, *, as_json: bool
) -> Iterator[dict[str, Any]]:
    """Yield the deltas of some tables (None: all); unless JSON is printed, with the columns `written` and `values`."""
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
            yield {**delta, "written": written, "values": ", ".join(cells)}


def _peek(
    remote: GatewayConnection, client_id: str, since: str | None, limit: int | None, cursors: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the deltas of the rows that a client may see, without any effect on the client.

    Args:
        remote: the gateway.
        client_id: the client.
        since: a cursor; `now` for changes after this call only; None for all rows.
        limit: number of deltas, at most; None: no limit.
        cursors: each page's cursor is appended to it.
    """
    remaining, more = limit, True
    while more and remaining != 0:
        page_size = min(_PAGE_SIZE, remaining or _PAGE_SIZE)
        page = remote.get("/sync/{gateway}/peek", clientId=client_id, since=since, limit=page_size)
        cursors.append(page["cursor"])
        yield from page["deltas"]
        since, more = page["cursor"], page["hasMore"]
        remaining = None if remaining is None else max(0, remaining - len(page["deltas"]))


def _pull_as_app(
    remote: GatewayConnection, client_id: str, since: str | None, limit: int | None, cursors: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield what a pull of the client's app returns. The gateway counts it as sent to the app.

    Args:
        remote: the gateway.
        client_id: the client.
        since: the app's cursor, an integer; None for all rows.
        limit: number of deltas, at most; None: no limit.
        cursors: each page's cursor is appended to it.

    Raises:
        typer.BadParameter: `since` is not the cursor of an app.
    """
    import msgspec

    from lakesync.model.types import SyncPull
    from lakesync.wire.json import encode_delta

    if since is not None and not (since.isascii() and since.isdigit() and len(since) < 20):
        raise typer.BadParameter(f"--since is {since!r}; with --as-app it must be the app's cursor, an integer")
    cursor, remaining, more = int(since or 0), limit, True
    transport = remote.transport()
    while more and remaining != 0:
        page = transport.pull(SyncPull(client_id, cursor, min(_PAGE_SIZE, remaining or _PAGE_SIZE)))
        cursor, more = page.server_hlc, page.has_more
        cursors.append(str(cursor))
        yield from (msgspec.json.decode(encode_delta(delta)) for delta in page.deltas)
        remaining = None if remaining is None else max(0, remaining - len(page.deltas))
    transport.close()


def _changes(
    remote: GatewayConnection, client_id: str, seconds: float | None, *, from_start: bool
) -> Iterator[dict[str, Any]]:
    """Yield changes of the rows that a client may see, and retry failed requests.

    Args:
        remote: the gateway.
        client_id: the client.
        seconds: for how long; None: without end.
        from_start: whether to yield the existing rows first.

    Raises:
        LakeSyncError: the first request failed, or a later one was rejected for good.
    """
    from lakesync.model.errors import ResyncRequiredError, TransientError

    deadline = float("inf") if seconds is None else time.monotonic() + seconds
    cursors: list[str] = []
    yield from _peek(remote, client_id, None if from_start else "now", None, cursors)
    if not from_start:
        output.note(f"at {cursors[-1]}; waiting for changes")
    retry_seconds = _FIRST_RETRY_SECONDS
    while time.monotonic() < deadline:
        try:
            yield from _peek(remote, client_id, cursors[-1], None, cursors)
        except TransientError as error:
            output.note(f"{error}; retrying in {retry_seconds:g} s")
            _sleep(retry_seconds, deadline)
            retry_seconds = min(_MAX_RETRY_SECONDS, 2 * retry_seconds)
        except ResyncRequiredError:
            output.note("the sync rules or the shards changed; all visible rows are printed again")
            yield from _peek(remote, client_id, None, None, cursors)
        else:
            retry_seconds = _FIRST_RETRY_SECONDS
            _sleep(_POLL_SECONDS, deadline)


def _sleep(seconds: float, deadline: float) -> None:
    """Sleep, but not beyond the deadline on the monotonic clock."""
    time.sleep(max(0.0, min(seconds, deadline - time.monotonic())))


def _print_delta(delta: dict[str, Any], *, as_json: bool) -> None:
    """Print a delta at once, as `_display_rows` yields it."""
    if as_json:
        output.record(delta)
    else:
        row = f"{delta['table']}/{delta['rowId']}"
        print(f"{delta['written']}  {delta['clientId']}  {delta['op']:<6}  {row}  {delta['values']}")
    sys.stdout.flush()
