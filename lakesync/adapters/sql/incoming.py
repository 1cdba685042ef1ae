"""A batch on its way into the table of deltas: by a scratch table or straight, and read back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from lakesync.adapters.arrow import hashes_of, held_of_ids, spelled
from lakesync.adapters.base import Held
from lakesync.adapters.sql.dialect import Dialect
from lakesync.adapters.sql.executor import Appending, Connection, Hashing
from lakesync.adapters.sql.stored import DELTAS, KEY, STORED, TRUE_ID, stored_rows

if TYPE_CHECKING:
    import pyarrow as pa

_SCRATCH = "lakesync_incoming"
_FIRST_PART = 1_000
_PART = 10_000
"""Rows that are made ready while the ones before them travel."""
_BETWEEN = "hlc >= ? AND hlc <= ?"
"""What lets the database leave out what is older or younger."""


class Incoming:
    """Deltas that come in, or are to go, over one connection."""

    def __init__(self, connection: Connection, dialect: Dialect, deltas: pa.Table) -> None:
        """Args: deltas: in either form, at least one."""
        self._connection = connection
        self._dialect = dialect
        self._rows = stored_rows(deltas)
        self._bounds = _bounds(self._rows)
        self._loaded = False

    def begin(self) -> None:
        """Load the scratch table before the transaction, where that is the only way in."""
        if not isinstance(self._connection, Appending):
            self._load()

    def bring(self) -> None:
        """Into the table, within the caller's transaction; what is there already stays as it is.

        Nearly always none of it is there yet, so straight is tried first where the database has such a way. Rows are
        in order of the key, so that two who write the same ones do not wait for each other.
        """
        connection = self._connection
        if isinstance(connection, Appending):
            if connection.append(DELTAS, self._rows.column_names, self._parts()):
                return
            self._load()
        connection.execute(self._dialect.merge(DELTAS, _SCRATCH, [column.name for column in STORED], KEY, ()))

    def held(self) -> Held:
        """What the table holds of them."""
        found = None if self._loaded else self._held_by_ids()
        return found if found is not None else self._held_by_keys()

    def remove(self) -> int:
        """Out of the table, in one statement; how many were there."""
        self._load()
        same = " AND ".join(f"i.{name} = {DELTAS}.{name}" for name in KEY)
        there = f"EXISTS (SELECT 1 FROM {_SCRATCH} i WHERE {same})"
        return self._connection.execute(f"DELETE FROM {DELTAS} WHERE {_BETWEEN} AND {there}", self._bounds)

    def _load(self) -> None:
        for statement in self._dialect.scratch(_SCRATCH, STORED, KEY):
            self._connection.execute(statement)
        self._connection.load(_SCRATCH, spelled(self._rows))
        self._loaded = True

    def _parts(self) -> Iterator[pa.Table]:
        """Its rows as they are stored; the first of them soon, so that something travels."""
        count = len(self._rows)
        for start, end in pairwise([0, *range(_FIRST_PART, count, _PART), count]):
            yield spelled(self._rows.slice(start, end - start))
        self._wanted  # noqa: B018 made while the last of them travels

    def _held_by_ids(self) -> Held | None:
        """By their ids; None where there is much else of their time, or it is not clear."""
        import pyarrow.compute as pc

        most = 2 * len(self._rows)
        found, wanted = self._hashes(most + 1) or self._texts(most + 1)
        if len(found) > most:
            return None
        if not found.equals(wanted):
            found = found.filter(pc.is_in(found, wanted))
        if len(found) != len(wanted):
            return None  # something is missing, or an id is another client's too
        return held_of_ids(found)

    def _hashes(self, most: int) -> tuple[pa.ChunkedArray, pa.ChunkedArray] | None:
        """The ids of their time, and theirs, where all of both are hashes."""
        import pyarrow as pa

        if not isinstance(self._connection, Hashing):
            return None
        if self._wanted is None:
            return None
        query = f"SELECT delta_id AS id FROM {DELTAS} WHERE {_BETWEEN} LIMIT {most}"
        found = self._connection.hashes(query, self._bounds)
        return None if found is None else (pa.chunked_array([found]), self._wanted)

    @cached_property
    def _wanted(self) -> pa.ChunkedArray | None:
        """Their ids, where all are hashes."""
        import pyarrow as pa

        hashes = [hashes_of(chunk) for chunk in self._rows.column("delta_id").chunks]
        return None if any(each is None for each in hashes) else pa.chunked_array(hashes)

    def _texts(self, most: int) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """The ids of their time, and theirs."""
        import pyarrow.compute as pc

        query = f"SELECT {TRUE_ID} AS delta_id FROM {DELTAS} WHERE {_BETWEEN} LIMIT {most}"
        found = self._connection.arrow(query, self._bounds, _ids()).column("delta_id")
        return found, pc.coalesce(self._rows.column("long_id"), self._rows.column("delta_id"))

    def _held_by_keys(self) -> Held:
        if not self._loaded:
            self._load()
        same = " AND ".join(f"i.{name} = d.{name}" for name in KEY)
        found = self._connection.arrow(
            f"SELECT COALESCE(d.long_id, d.delta_id) AS delta_id FROM {_SCRATCH} i JOIN {DELTAS} d ON {same}"
            " WHERE d.hlc >= ? AND d.hlc <= ?",
            self._bounds,
            _ids(),
        )
        return held_of_ids(found.column("delta_id"))


def _ids() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field("delta_id", pa.string())])


def _bounds(rows: pa.Table) -> list[int]:
    """The least and the greatest hlc."""
    import pyarrow.compute as pc

    between = pc.min_max(rows.column("hlc")).as_py()
    return [between["min"], between["max"]]
