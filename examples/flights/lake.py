"""Reads the lake with public tools: pyiceberg for tables, DuckDB for queries.

It shares no code with LakeSync, so the demo's comparisons do not depend on LakeSync's own reader. `System`
(`system.py`) creates the `Lake`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from examples.flights.data import COLUMNS

DELTAS = "lakesync.deltas"
"""The history: a table with all deltas that clients ever pushed."""
STATE = "tables"
"""Namespace of the state tables."""


@dataclass(frozen=True)
class Lake:
    """The embedded lake in a data folder."""

    catalogue: Path
    """The catalog's SQLite file."""
    warehouse: Path
    """The folder with the tables' files."""

    def read(self, table: str, *columns: str) -> pa.Table:
        """Return the rows of a table's newest snapshot.

        Args:
            table: the table's name with its namespace.
            columns: the columns to read; none for all.

        Raises:
            pyiceberg.exceptions.NoSuchTableError: nothing was merged into it yet.
        """
        catalogue = SqlCatalog("lake", uri=f"sqlite:///{self.catalogue}", warehouse=self.warehouse.as_uri())
        try:
            return catalogue.load_table(table).scan(selected_fields=columns or ("*",)).to_arrow()
        finally:
            catalogue.engine.dispose()

    def state(self, table: str) -> pa.Table:
        """Return all rows of a state table. Deleted rows are included: their column `_gone` is true."""
        return self.read(f"{STATE}.{table}")

    def count(self) -> tuple[int, int]:
        """Return `(deltas, distinct delta ids)` of the history."""
        ids = self.read(DELTAS, "delta_id")["delta_id"]
        return len(ids), len(ids.unique())

    def hashes(self) -> dict[str, str]:
        """Return a hash of each state table's rows, typed columns and cells, independent of their order."""
        return {table: _content_hash(self.state(table)) for table in COLUMNS}

    def delays(self) -> list[tuple[str, str, int, float, float]]:
        """Return carriers and their mean delays in minutes, most delayed first.

        Each is `(carrier, name, flights, mean departure delay, mean arrival delay)`.
        """
        flights, airlines = self.state("flights"), self.state("airlines")
        with duckdb.connect() as database:
            database.register("flights", flights)
            database.register("airlines", airlines)
            return database.execute(
                """
                select carrier, name, count(*), avg(dep_delay), avg(arr_delay)
                from flights join airlines using (carrier)
                where not flights._gone and not airlines._gone and status = 'arrived'
                group by all order by 5 desc
                """
            ).fetchall()


def _content_hash(table: pa.Table) -> str:
    """Hash the rows as JSON, sorted by key and their cells by column.

    `_arrival` is excluded: repeating the merge of a day may increase it.
    """
    with duckdb.connect() as database:
        database.register("state", table)
        typed = ", ".join(f'"{name}"' for name in sorted(table.column_names) if name not in ("_cells", "_arrival"))
        rows = database.execute(
            f"""
            select to_json(struct_pack(cells := list_sort(map_entries(_cells)), {typed}))::varchar
            from state order by _gateway, _row
            """
        )
        digest = hashlib.sha256()
        while batch := rows.fetchmany(10_000):
            digest.update("\n".join(row[0] for row in batch).encode())
        return digest.hexdigest()
