"""`lakesync row history`: what every delta of a row did, and why some did nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from lakesync.cli.examples import examples
from lakesync.config import load

if TYPE_CHECKING:
    from rich.text import Text

    from lakesync.analysis.fates import DeltaFate

app = typer.Typer(
    no_args_is_help=True,
    help="Look at one row of the lake.",
    epilog=examples(("lakesync row history orders 4711", "who wrote what, and what became of it")),
)

_STYLES = {"live": "green", "replaced": "dim", "lost": "red", "deleted": "red", "repeated": "dim"}


@app.callback()
def row() -> None:
    """Look at one row of the lake."""


@app.command(
    epilog=examples(
        ("lakesync row history orders 4711", "in every gateway that has it"),
        ("lakesync row history orders 4711 --gateway shop --json", "for a program"),
    )
)
def history(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The row's table.", show_default=False)],
    row_id: Annotated[str, typer.Argument(metavar="ROW", help="The row's id.", show_default=False)],
    gateway: Annotated[str | None, typer.Option(help="Only in this gateway.", show_default=False)] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="The folder that keeps everything.", show_default=False)
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a delta instead of a table.")] = False,
) -> None:
    """Show every delta of a row in order of arrival, those that lost included, and why each lost."""
    from lakesync.analysis.row_history import row_history

    found = row_history(load({"data_dir": data} if data else {}), table, row_id, gateway)
    if as_json:
        for each in found:
            print(msgspec.json.encode(each).decode())
        return
    _show(found)


def _show(found: list[DeltaFate]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    gateways = dict.fromkeys(each.gateway for each in found)
    for gateway in gateways:
        shown = Table("arrived", "written", "client", "op", "what became of it", box=None, pad_edge=False)
        for each in found:
            if each.gateway == gateway:
                arrived = each.arrived if each.flushed else f"{each.arrived} (not flushed)"
                shown.add_row(*map(Text, (arrived, each.written, each.client_id, each.op)), _fate(each))
        console = Console()
        if len(gateways) > 1:
            console.print(Text(f"gateway {gateway}", style="bold"))
        console.print(shown)


def _fate(each: DeltaFate) -> Text:
    from rich.text import Text

    lines = [Text(each.note)] if each.note else []
    for cell in each.columns:
        line = Text(f"{cell.column} = {bytes(cell.value).decode()}  ")
        line.append(cell.fate, style=_STYLES[cell.fate])
        line.append(f": {cell.why}" if cell.why else "", style="dim")
        lines.append(line)
    return Text("\n").join(lines)
