"""The lake as anyone may read it: pyiceberg for the tables, DuckDB for questions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from examples.flights.schemas import COLUMNS

DELTAS = "lakesync.deltas"
STATE = "tables"
"""Namespace of the state tables."""


@dataclass(frozen=True)
class Lake:
    """The embedded lake in a data folder."""

    catalogue: Path
    """The SQLite file of the catalogue."""
    warehouse: Path

    def read(self, table: str, *columns: str) -> pa.Table:
        """A table's newest snapshot; `table` with its namespace.

        Raises:
            pyiceberg.exceptions.NoSuchTableError: nothing was ever merged into it.
        """
        catalogue = SqlCatalog("lake", uri=f"sqlite:///{self.catalogue}", warehouse=self.warehouse.as_uri())
        try:
            return catalogue.load_table(table).scan(selected_fields=columns or ("*",)).to_arrow()
        finally:
            catalogue.engine.dispose()

    def state(self, table: str) -> pa.Table:
        """A state table's newest snapshot."""
        return self.read(f"{STATE}.{table}")

    def count(self) -> tuple[int, int]:
        """`(deltas, different delta ids)` of the history."""
        ids = self.read(DELTAS, "delta_id")["delta_id"]
        return len(ids), len(ids.unique())

    def hashes(self) -> dict[str, str]:
        """State table → a hash of its rows, typed columns and cells, whatever their order."""
        return {table: _content_hash(self.state(table)) for table in COLUMNS}

    def delays(self) -> list[tuple[str, str, int, float, float]]:
        """`(carrier, name, flights, mean departure delay, mean arrival delay)` in minutes, the most delayed first."""
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
    """Rows are sorted by key and cells by column before they are hashed as JSON.

    `_arrival` is left out: it is bookkeeping, and a merge of one day again may lift it.
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
