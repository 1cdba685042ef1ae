"""`lakesync erase`: one row, or all that one client wrote, out of staging for good."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli import completion, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, Yes, settings
from lakesync.cli.store_access import opened_store

if TYPE_CHECKING:
    from lakesync.staging.records import Erasure

app = command_app()


@app.command(
    epilog=examples(
        ("lakesync erase --gateway shop --client alice", "all that she wrote"),
        ("lakesync erase --gateway shop --table orders --row 4711 --yes", "one row"),
    )
)
def erase(
    gateway: Gateway = None,
    table: Annotated[
        str | None, typer.Option(help="The row's table.", show_default=False, autocompletion=completion.tables)
    ] = None,
    row: Annotated[str | None, typer.Option(help="The row's id.", show_default=False)] = None,
    client: Annotated[str | None, typer.Option(help="The client whose data goes.", show_default=False)] = None,
    data: Data = None,
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Erase a row (--table and --row), or everything that a client wrote (--client), from staging for good.

    Clients that hold an erased row are told by a DELETE. What the lake holds of it is noted for the lake to erase.
    Through a gateway that runs, or, where none does, on the store itself.
    """
    from lakesync.cli.connection import which_gateway

    is_row = table is not None and row is not None and client is None
    is_client = client is not None and table is None and row is None
    if not is_row and not is_client:
        raise typer.BadParameter("name a row with --table and --row, or a client with --client")
    what = f"row {row!r} of table {table!r}" if is_row else f"everything that client {client!r} wrote"
    config = settings(data)
    chosen = which_gateway(config, gateway)
    output.confirm(f"Erase {what} in gateway {chosen!r}? Nothing brings it back.", yes=yes)
    with opened_store(config) as store:
        if client is not None:
            done = store.erase_client(chosen, client)
        else:
            done = store.erase_row(chosen, table or "", row or "")
    _tell(done, what, as_json=as_json)


def _tell(done: Erasure, what: str, *, as_json: bool) -> None:
    if as_json:
        output.record(done)
        return
    print(f"erased {what}: {done.row_count} rows, {done.deltas} deltas that waited for the lake")
    print(f"the lake has yet to erase what it holds up to arrival {done.arrival} (erasure {done.seq})", file=sys.stderr)
