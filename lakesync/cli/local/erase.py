"""`lakesync erase`: erases a row, or everything that a client wrote, from staging for good."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli import completion, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, Yes, load_settings
from lakesync.cli.store_access import open_store

if TYPE_CHECKING:
    from lakesync.staging.records import Erasure

app = command_app()


@app.command(
    epilog=examples(
        ("lakesync erase --gateway shop --client alice", "everything that Alice wrote"),
        ("lakesync erase --gateway shop --table orders --row 4711 --yes", "one row"),
    )
)
def erase(
    gateway: Gateway = None,
    table: Annotated[
        str | None, typer.Option(help="The row's table.", show_default=False, autocompletion=completion.tables)
    ] = None,
    row: Annotated[str | None, typer.Option(help="The row's id, with --table.", show_default=False)] = None,
    client: Annotated[str | None, typer.Option(help="The client whose data is erased.", show_default=False)] = None,
    data: Data = None,
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Erase a row, or everything that a client wrote, for good.

    Give --table and --row, or --client. The data is erased from staging at once, and from the lake by the pipeline.
    Clients with an erased row receive a DELETE. If a gateway owns the store, the command calls that gateway.
    """
    from lakesync.cli.connection import choose_gateway

    is_row = table is not None and row is not None and client is None
    is_client = client is not None and table is None and row is None
    if not is_row and not is_client:
        raise typer.BadParameter("nothing to erase; give --table and --row, or --client")
    what = f"row {row!r} of table {table!r}" if is_row else f"everything that client {client!r} wrote"
    config = load_settings(data)
    chosen = choose_gateway(config, gateway)
    output.confirm(f"Erase {what} in gateway {chosen!r}? This cannot be undone.", yes=yes)
    with open_store(config) as store:
        if client is not None:
            done = store.erase_client(chosen, client)
        else:
            done = store.erase_row(chosen, table or "", row or "")
    _print_result(done, what, as_json=as_json)


def _print_result(done: Erasure, what: str, *, as_json: bool) -> None:
    if as_json:
        output.record(done)
        return
    print(f"erased {what}: {done.row_count} rows, {done.deltas} unflushed deltas")
    print(
        f"the pipeline will erase it from the lake up to arrival {done.arrival} (erasure {done.seq})", file=sys.stderr
    )
