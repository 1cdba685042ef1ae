"""`lakesync row history`: shows every delta (change) of a row, and the outcome of each value that it wrote.

An outcome is `live`, `replaced`, `lost`, `deleted` or `repeated`; `lakesync.analysis.row_history` computes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json, RowId, RowTable, complete_gateways, load_settings

if TYPE_CHECKING:
    from rich.text import Text

    from lakesync.analysis.row_history import DeltaProvenance

app = command_app(
    "Inspect one row of the lake.",
    examples(("lakesync row history orders 4711", "every delta and its outcome")),
)

_STYLES = {"live": "green", "replaced": "dim", "lost": "red", "deleted": "red", "repeated": "dim"}
"""Outcome of a value → its style in the terminal."""


@app.callback()
def row() -> None:
    """Inspect one row of the lake."""


@app.command(
    epilog=examples(
        ("lakesync row history orders 4711", "in every gateway that has the row"),
        ("lakesync row history orders 4711 --gateway shop --json", "one gateway, as JSON"),
    )
)
def history(
    table: RowTable,
    row_id: RowId,
    gateway: Annotated[
        str | None,
        typer.Option(
            "--gateway",
            "-g",
            help="Search only this gateway; default: all.",
            show_default=False,
            autocompletion=complete_gateways,
        ),
    ] = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Show every delta of a row, and why each value won or lost.

    Deltas are printed in order of arrival.
    """
    from lakesync.analysis.row_history import row_history
    from lakesync.cli import output

    deltas = row_history(load_settings(data), table, row_id, gateway)
    if as_json:
        for delta in deltas:
            output.record(delta)
        return
    _print_deltas(deltas)


def _print_deltas(deltas: list[DeltaProvenance]) -> None:
    """Print a table of deltas for each gateway."""
    from rich.text import Text

    from lakesync.cli import output

    gateways = dict.fromkeys(delta.gateway for delta in deltas)
    for gateway in gateways:
        if len(gateways) > 1:
            print(f"gateway {gateway}")
        rows = []
        for delta in deltas:
            if delta.gateway == gateway:
                arrived = delta.arrived if delta.flushed else f"{delta.arrived} (not flushed)"
                rows.append((*map(Text, (arrived, delta.written, delta.client_id, delta.op)), _outcomes(delta)))
        output.table(("arrived", "written", "client", "op", "outcome"), rows)


def _outcomes(delta: DeltaProvenance) -> Text:
    """Return a line for each column of a delta: value, outcome, and the reason for the outcome."""
    from rich.text import Text

    lines = [Text(delta.note)] if delta.note else []
    for cell in delta.columns:
        line = Text(f"{cell.column} = {bytes(cell.value).decode()}  ")
        line.append(cell.outcome, style=_STYLES[cell.outcome])
        line.append(f": {cell.reason}" if cell.reason else "", style="dim")
        lines.append(line)
    return Text("\n").join(lines)
