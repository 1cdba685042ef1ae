"""`lakesync pull` and `lakesync tail`: what a client is sent, as it is sent."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import completing, output
from lakesync.cli.examples import examples
from lakesync.cli.lazy import command_app
from lakesync.cli.options import Claim, Data, Gateway, Json, TokenFile, Url, named_claims

if TYPE_CHECKING:
    from lakesync.cli.remote import Remote
    from lakesync.client.transports.base import Line, SyncTransport
    from lakesync.types import RowDelta, SyncResponse

pull_app, tail_app = command_app(), command_app()

_PAGE = 1000
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0
_COLUMNS = ("arrived=written", "clientId=client", "op", "table", "rowId=row", "values")

Client = Annotated[
    str | None, typer.Option("--client", "-c", help="As whom; else the token's sub.", show_default=False)
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", help="Only this table's; may be repeated.", autocompletion=completing.tables),
]
Since = Annotated[int, typer.Option(help="The cursor that the last pull ended with; 0: from the beginning.", min=0)]


@pull_app.command(
    epilog=examples(
        ("lakesync pull --client alice", "all that she may see"),
        ("lakesync pull --client bob --claim team=red", "where the rules read a claim"),
        ("lakesync pull --client alice --table todos --json > todos.jsonl", "a delta a line; they can be pushed again"),
        ("lakesync pull --client alice --since 114000000000000000", "what came since"),
    )
)
def pull(
    client: Client = None,
    since: Since = 0,
    limit: Annotated[int | None, typer.Option(help="End after so many.", min=1, show_default=False)] = None,
    table: Tables = None,
    claim: Claim = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Pull what a client lacks, page after page.

    The gateway takes it as that client's pull. The cursor to go on from is said on stderr.
    """
    from lakesync.cli.remote import connect

    remote = connect(url, gateway, token_file, data, role="client", client=client, claims=named_claims(claim))
    who = client or remote.client_id
    ended: list[int] = [since]
    deltas = _pulled(remote.transport(), who, since, limit, ended)
    output.records(
        told(deltas, table, as_json=as_json), as_json=as_json, columns=_COLUMNS, none="nothing that this client lacks"
    )
    output.note(f"cursor: {ended[-1]}")


@tail_app.command(
    epilog=examples(
        ("lakesync tail --client alice", "what comes from now on"),
        ("lakesync tail --client alice --from-start --json", "what is there first; a delta a line"),
    )
)
def tail(
    client: Client = None,
    limit: Annotated[int | None, typer.Option(help="End after so many.", min=1, show_default=False)] = None,
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
    """Show changes as they happen, until Ctrl-C.

    As that client: what its rules let it see, moves in and out of its sight included. A connection that is lost is
    made again, and nothing is left out between the two.
    """
    from lakesync.cli.remote import connect

    remote = connect(url, gateway, token_file, data, role="client", client=client, claims=named_claims(claim))
    who = client or remote.client_id
    left = limit
    for each in told(_live(remote, who, seconds, from_start=from_start), table, as_json=as_json):
        _show(each, as_json=as_json)
        left = None if left is None else left - 1
        if left == 0:
            return


def told(deltas: Iterable[RowDelta], tables: list[str] | None, *, as_json: bool) -> Iterator[dict[str, Any]]:
    """Deltas in the wire's form, for people with their values side by side."""
    import msgspec

    from lakesync.hlc import wall_of
    from lakesync.wire.json import encode_delta

    for delta in deltas:
        if tables and delta.table not in tables:
            continue
        wire: dict[str, Any] = msgspec.json.decode(encode_delta(delta))
        if not as_json:
            cells = ", ".join(f"{cell.column}={bytes(cell.value).decode()}" for cell in delta.columns)
            wire |= {"arrived": output.moment(wall_of(delta.hlc)), "values": cells}
        yield wire


def _pulled(transport: SyncTransport, who: str, since: int, limit: int | None, ended: list[int]) -> Iterator[RowDelta]:
    """Page after page; `ended` gets the cursor of each."""
    from lakesync.types import SyncPull

    left, more = limit, True
    while more and left != 0:
        page = transport.pull(SyncPull(who, since, min(_PAGE, left or _PAGE)))
        yield from page.deltas
        since, more = page.server_hlc, page.has_more
        ended.append(since)
        left = None if left is None else max(0, left - len(page.deltas))
    transport.close()


def _live(remote: Remote, who: str, seconds: float | None, *, from_start: bool) -> Iterator[RowDelta]:
    """What there is, then what the gateway tells by itself."""
    waits = not from_start
    for unasked, page in _pages(remote, who, None if seconds is None else time.monotonic() + seconds):
        if unasked or not waits:
            yield from page.deltas
        if waits and not unasked and not page.has_more:
            waits = False
            output.note(f"at {page.server_hlc}; waiting for changes")


def _pages(remote: Remote, who: str, deadline: float | None) -> Iterator[tuple[bool, SyncResponse]]:
    """Pages that were asked for and those that were not, over one connection after another, each going on from where
    the one before ended.

    Raises:
        UnreachableError: the first connection cannot be made.
    """
    from lakesync.exceptions import TransientError

    since, wait = 0, _FIRST_WAIT
    line = remote.live().connect()
    while True:
        try:
            for unasked, page in _line(line, who, since, deadline):
                since, wait = page.server_hlc, _FIRST_WAIT
                yield unasked, page
        except TransientError as error:
            line.close()
            output.note(f"{error}; trying again in {wait:g} s")
        else:
            return
        line, wait = _again(remote, wait)


def _line(line: Line, who: str, since: int, deadline: float | None) -> Iterator[tuple[bool, SyncResponse]]:
    from lakesync.types import SyncPull

    try:
        line.pull(SyncPull(who, since, _PAGE))
        while deadline is None or time.monotonic() < deadline:
            came = line.receive(None if deadline is None else deadline - time.monotonic())
            if came is None:
                continue
            yield came
            unasked, page = came
            if not unasked and page.has_more:
                line.pull(SyncPull(who, page.server_hlc, _PAGE))
    finally:
        line.close()


def _again(remote: Remote, wait: float) -> tuple[Line, float]:
    """Another connection, as soon as one can be made, and how long to wait before the one after it."""
    from lakesync.exceptions import TransientError

    while True:
        time.sleep(wait)
        wait = min(_LONGEST_WAIT, 2 * wait)
        with suppress(TransientError):
            return remote.live().connect(), wait


def _show(each: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.record(each)
    else:
        place = f"{each['table']}/{each['rowId']}"
        print(f"{each['arrived']}  {each['clientId']}  {each['op']:<6}  {place}  {each['values']}")
    sys.stdout.flush()
