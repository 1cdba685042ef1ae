"""The demo's output: progress of each stage on stderr, and the result at the end, as tables or as a line of JSON.

`Demo` (`demo.py`) calls it. A delta is a change of a row by a client. Its *stamp* is `(hlc, client)`, the time by the
client's clock and the client's id; the greatest stamp wins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

LINE_SECONDS = 5.0
"""Seconds between two progress lines without a terminal."""


@dataclass
class Stage:
    """One stage: a progress bar on a terminal, otherwise lines."""

    _progress: Progress
    _task: TaskID
    _print_line: Callable[[str], None] | None
    """Prints a line; None on a terminal."""
    _printed_at: float = field(default_factory=time.monotonic)
    """When the newest line was printed, on the monotonic clock."""
    _note: str = ""
    _total: int = 0
    _done: int = 0

    def set_total(self, total: int) -> None:
        """Set the amount of the stage's work."""
        self._total = total
        self._progress.update(self._task, total=total)

    def set_done(self, done: int) -> None:
        """Set how much of it is done."""
        self._done = done
        self._show()

    def set_note(self, what: str) -> None:
        """Set the text that says what is happening now."""
        self._note = what
        self._show()

    def _show(self) -> None:
        """Update the progress bar; without a terminal, print a line if the last one is `LINE_SECONDS` old."""
        self._progress.update(self._task, completed=self._done, note=self._note)
        if self._print_line is not None and time.monotonic() - self._printed_at > LINE_SECONDS:
            self._printed_at = time.monotonic()
            count = f"{self._done:,} of {self._total:,}" if self._total else ""
            self._print_line("  " + " · ".join(filter(None, (count, self._note))))


class Reporter:
    """Writes progress to stderr, and the report there too if stdout is for JSON."""

    def __init__(self, *, as_json: bool) -> None:
        """Start the clock; `as_json` says whether stdout is for the line of JSON."""
        self._errors = Console(stderr=True, highlight=False)
        self._report = self._errors if as_json else Console(highlight=False)
        self._began = time.perf_counter()
        self.seconds: dict[str, float] = {}
        """Stage → how long it took."""

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._began

    def line(self, text: str) -> None:
        """Print one line with the elapsed time."""
        self._errors.print(f"[dim]\\[{self.elapsed:4.0f}s][/dim] {text}")

    @contextmanager
    def stage(self, name: str, text: str) -> Iterator[Stage]:
        """Show a stage while the block runs, then its duration, which `seconds` gets.

        Args:
            name: the stage's name in `seconds`.
            text: what the stage does, for people.
        """
        began = time.perf_counter()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[note]}[/dim]"),
        )
        if not self._errors.is_terminal:
            self.line(f"{text} …")
        with Progress(*columns, console=self._errors, transient=True, disable=not self._errors.is_terminal) as progress:
            line = None if self._errors.is_terminal else self.line
            yield Stage(progress, progress.add_task(text, total=None, note=""), line)
        self.seconds[name] = round(time.perf_counter() - began, 2)
        self.line(f"[green]✓[/green] {text} [dim]({self.seconds[name]:.1f} s)[/dim]")

    def table(self, title: str, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        """Print a table of the report; columns of numbers are aligned to the right.

        Args:
            title: the heading.
            header: the columns' names.
            rows: the cells, as many in each row as there are columns.
        """
        table = Table(title=title, title_justify="left", title_style="bold")
        for index, name in enumerate(header):
            table.add_column(name, justify="right" if rows and isinstance(rows[0][index], int | float) else "left")
        for row in rows:
            table.add_row(*(_cell_text(value) for value in row))
        self._report.print(table)

    def paragraph(self, text: str) -> None:
        """Print a paragraph of the report."""
        self._report.print(text)


@dataclass
class Result:
    """The result of a run, as `--json` prints it. Its fields are part of the demo's interface."""

    ok: bool = False
    """Whether all comparisons agree."""
    days: int = 0
    """Days of flights."""
    deltas: int = 0
    """Acknowledged deltas."""
    cells: int = 0
    """Distinct (row, column)."""
    conflicts: int = 0
    """Cells written by two or more clients."""
    crossed: int = 0
    """Cells of which a client's greater stamp arrived before another client's smaller one."""
    losers: int = 0
    """Deltas of which at least one value lost against another client's."""
    late: int = 0
    """Deltas that arrived at a later step than a greater stamp of the same row."""
    kills: int = 0
    """Killed processes, with `--prove`."""
    rows: int = 0
    """Visible rows at the end."""
    mismatches: int = 0
    """Differences between the system and the truth."""
    asof_mismatches: int = 0
    """Differences of the state as of the middle of the run."""
    clients: int = 0
    pulled: int = 0
    """Deltas that clients pulled."""
    repeats: int = 0
    """Repeated requests."""
    wrong: dict[str, int] = field(default_factory=dict)
    """Comparison → differences; `mismatches` is their sum without `as of`."""
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Dagster's runs, newest first."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration by stage."""
    rates: dict[str, float] = field(default_factory=dict)
    """Deltas per second by stage."""
    polled: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Table → rows from a connector, as shown by a client and the lake."""

    def json(self) -> str:
        """Return the result as one line of JSON."""
        return msgspec.json.encode(self).decode()


def _cell_text(value: Any) -> str:
    """Return a value as the text of a table's cell."""
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
