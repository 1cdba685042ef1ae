"""`lakesync pull` and `lakesync tail`: the rows that a client may see, and their changes.

Both read pages of deltas (changes of rows) from the gateway's route `peek`, which has no effect on the client. With
`--as-app`, `pull` sends the request of the client's app instead, by which the gateway remembers what it has sent to the
app. A *cursor* is the position after a page, where the next page starts.

A parameter `options: ConnectionOptions` adds the options that choose gateway and token, from `--url` to `--data`. A
gateway is one app's stream of deltas; `{gateway}` in the path of a request is its id.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lakesync.cli import output
from lakesync.cli.commands import (
    Claim,
    Client,
    ConnectionOptions,
    Json,
    command_app,
    complete_tables,
    examples,
    parse_claim_options,
)
from lakesync.model.errors import ResyncRequiredError, TransientError

if TYPE_CHECKING:
    from lakesync.cli.connection import GatewayConnection
    from lakesync.client.transports.http import HttpTransport

pull_app, tail_app = command_app(), command_app()

_PAGE_SIZE = 1000
"""Deltas of one request, at most."""
_POLL_SECONDS = 0.5
"""Seconds between two requests of `tail`."""
_TAIL_TOKEN_SECONDS = 86_400.0
"""Lifetime of the token that `tail` signs for itself."""
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 30.0
"""Delay before the first retry of a failed request; it doubles up to the second value."""
_MAX_CURSOR_DIGITS = 20
"""An app's cursor is an integer of 63 bits, which has fewer digits."""
_COLUMNS = ("written", "clientId=client", "op", "table", "rowId=row", "values")
"""Columns of the table, for `output.print_rows`."""

Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", help="Show only this table; may be repeated.", autocompletion=complete_tables),
]
Limit = Annotated[int | None, typer.Option(help="Stop after this many deltas; default: no limit.", min=1)]


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
    *,
    options: ConnectionOptions,
    as_app: Annotated[
        bool,
        typer.Option(
            "--as-app", help="Pull in place of the client's app. The gateway then counts these rows as sent to the app."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the rows that a client may see, without side effects.

    Sync rules apply with the client's claims. Rows that the client wrote itself are shown too. The client's app still
    receives the same rows. The cursor for --since is printed on stderr.
    """
    remote = options.connect(role="client", client=client, claims=parse_claim_options(claim))
    client_id = client or remote.client_id
    is_app_cursor = since is None or (since.isascii() and since.isdigit() and len(since) < _MAX_CURSOR_DIGITS)
    if as_app and not is_app_cursor:
        raise typer.BadParameter(f"--since is {since!r}; with --as-app it must be the app's cursor, an integer")
    with closing(remote.transport) as transport:
        read_page = _app_page(transport, client_id) if as_app else _peek_page(remote, client_id)
        reader = _DeltaReader(read_page, since, table)
        deltas = reader.read(limit)
        output.print_rows(
            deltas if as_json else map(_cells, deltas), as_json=as_json, columns=_COLUMNS, if_empty="no rows"
        )
    output.note(f"cursor: {reader.cursor}")


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
        float | None, typer.Option(help="Stop after this many seconds; default: no limit.", min=0)
    ] = None,
    table: Tables = None,
    claim: Claim = None,
    *,
    options: ConnectionOptions,
    from_start: Annotated[bool, typer.Option("--from-start", help="Also show the existing rows.")] = False,
    as_json: Json = False,
) -> None:
    """Print changes to the rows that a client may see.

    Runs until Ctrl-C. Rows that become visible or invisible to the client are printed too. Requests that fail are
    retried without losing changes. Of several changes of a row within half a second, the last one is printed.
    """
    remote = options.connect(
        role="client", client=client, claims=parse_claim_options(claim), token_seconds=_TAIL_TOKEN_SECONDS
    )
    changes = _changes(_peek_page(remote, client or remote.client_id), table, seconds, from_start=from_start)
    for number, delta in enumerate(changes, 1):
        _print_delta(delta, as_json=as_json)
        if number == limit:
            return


class _Page(NamedTuple):
    """A page of deltas."""

    deltas: list[dict[str, Any]]
    """The deltas, as JSON has them."""
    cursor: str
    """Where the next page starts."""
    has_more: bool
    """Whether another page follows now."""


ReadPage = Callable[[str | None, int], _Page]
"""Reads a page of deltas after a cursor (None: from the start), with a maximal number of deltas."""


def _peek_page(remote: GatewayConnection, client_id: str) -> ReadPage:
    """Return a function that reads pages of the rows that a client may see, without any effect on the client.

    From the cursor `now`, only changes after the request follow.
    """

    def read(since: str | None, size: int) -> _Page:
        page = remote.get("/sync/{gateway}/peek", clientId=client_id, since=since, limit=size)
        return _Page(page["deltas"], page["cursor"], page["hasMore"])

    return read


def _app_page(transport: HttpTransport, client_id: str) -> ReadPage:
    """Return a function that pulls pages in place of a client's app. The gateway counts them as sent to the app."""
    import msgspec

    from lakesync.model.types import SyncPull
    from lakesync.wire.json import encode_delta

    def read(since: str | None, size: int) -> _Page:
        page = transport.pull(SyncPull(client_id, int(since or 0), size))
        deltas = [msgspec.json.decode(encode_delta(delta)) for delta in page.deltas]
        return _Page(deltas, str(page.server_hlc), page.has_more)

    return read


class _DeltaReader:
    """Reads the deltas that follow a cursor."""

    def __init__(self, read_page: ReadPage, cursor: str | None, tables: list[str] | None) -> None:
        """Start at a cursor.

        Args:
            read_page: reads a page.
            cursor: the cursor; None for all rows.
            tables: yield only deltas of these tables; None: of all.
        """
        self._read_page = read_page
        self._tables = tables
        self.cursor = cursor
        """Where the next request starts."""

    def read(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the deltas of all pages that follow now, at most `limit`; None: no limit."""
        remaining, has_more = limit, True
        while has_more and remaining != 0:
            page = self._read_page(self.cursor, min(_PAGE_SIZE, remaining or _PAGE_SIZE))
            self.cursor, has_more = page.cursor, page.has_more
            selected = [delta for delta in page.deltas if not self._tables or delta["table"] in self._tables]
            yield from selected
            remaining = None if remaining is None else max(0, remaining - len(selected))


def _changes(
    read_page: ReadPage, tables: list[str] | None, seconds: float | None, *, from_start: bool
) -> Iterator[dict[str, Any]]:
    """Yield changes of the rows that a client may see, and retry failed requests.

    Args:
        read_page: reads a page.
        tables: yield only deltas of these tables; None: of all.
        seconds: for how long; None: without end.
        from_start: whether to yield the existing rows first.

    Raises:
        LakeSyncError: the first request failed, or a later one was rejected for good.
    """
    deadline = float("inf") if seconds is None else time.monotonic() + seconds
    reader = _DeltaReader(read_page, None if from_start else "now", tables)
    yield from reader.read()
    if not from_start:
        output.note(f"at {reader.cursor}; waiting for changes")
    retry_seconds = _FIRST_RETRY_SECONDS
    while time.monotonic() < deadline:
        try:
            yield from reader.read()
        except TransientError as error:
            output.note(f"{error}; retrying in {retry_seconds:g} s")
            _sleep(retry_seconds, deadline)
            retry_seconds = min(_MAX_RETRY_SECONDS, 2 * retry_seconds)
        except ResyncRequiredError:
            output.note("the sync rules or the shards changed; all visible rows are printed again")
            reader.cursor = None
        else:
            retry_seconds = _FIRST_RETRY_SECONDS
            _sleep(_POLL_SECONDS, deadline)


def _sleep(seconds: float, deadline: float) -> None:
    """Sleep, but not beyond the deadline on the monotonic clock."""
    time.sleep(max(0.0, min(seconds, deadline - time.monotonic())))


def _print_delta(delta: dict[str, Any], *, as_json: bool) -> None:
    """Print a delta immediately, as JSON or as a line of text."""
    if as_json:
        output.print_json(delta)
    else:
        cells = _cells(delta)
        row = f"{delta['table']}/{delta['rowId']}"
        print(f"{cells['written']}  {delta['clientId']}  {delta['op']:<6}  {row}  {cells['values']}")
    sys.stdout.flush()


def _cells(delta: dict[str, Any]) -> dict[str, Any]:
    """Return a delta with the columns that only the display has: `written`, its time, and `values`, its columns."""
    import msgspec

    from lakesync.model.hlc import wall_of

    values = (f"{each['column']}={msgspec.json.encode(each['value']).decode()}" for each in delta["columns"])
    return {**delta, "written": output.utc_time(wall_of(int(delta["hlc"]))), "values": ", ".join(values)}
