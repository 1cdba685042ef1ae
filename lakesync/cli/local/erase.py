"""`lakesync erase`: erases a row, or everything that a client wrote, for good.

It erases from the staging store, the database to which gateways commit; the pipeline then erases from the lake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, Yes, complete_tables, load_settings
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
        str | None, typer.Option(help="The row's table.", show_default=False, autocompletion=complete_tables)
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
    subject = f"row {row!r} of table {table!r}" if is_row else f"everything that client {client!r} wrote"
    config = load_settings(data)
    gateway_id = choose_gateway(config, gateway)
    output.confirm(f"Erase {subject} in gateway {gateway_id!r}? This cannot be undone.", yes=yes)
    with open_store(config) as store:
        if client is not None:
            erasure = store.erase_client(gateway_id, client)
        else:
            erasure = store.erase_row(gateway_id, table or "", row or "")
    _print_result(erasure, subject, as_json=as_json)


def _print_result(erasure: Erasure, subject: str, *, as_json: bool) -> None:
    """Print what was erased from staging; `subject` names it."""
    if as_json:
        output.record(erasure)
        return
    print(f"erased {subject}: {erasure.row_count} rows, {erasure.deltas} unflushed deltas")
    output.note(f"the pipeline will erase it from the lake up to arrival {erasure.arrival} (erasure {erasure.seq})")
