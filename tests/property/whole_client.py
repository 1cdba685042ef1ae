"""LakeSync's whole client in the oracle's histories: a replica in an SQLite file, with writes by plain SQL.

It has the interface of `CoreClient`, so the same histories can be played with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from lakesync.client.core import (
    Changes,
    CheckpointEnd,
    CheckpointFrame,
    ClientCore,
    CoreLimits,
    Edit,
    KnownRow,
    NoResponse,
    Position,
)
from lakesync.client.core.messages import Response
from lakesync.client.core.store import EditStatus
from lakesync.client.errors import UnreachableError
from lakesync.client.sqlite.database import connect
from lakesync.client.sync.checkpoint_load import load_checkpoint
from lakesync.client.sync.replica import Replica
from lakesync.client.transports.base import Checkpoint
from lakesync.model.schema import parse_schema
from lakesync.model.types import Op, RowKey
from lakesync.wire import protobuf
from tests.property.core_client import TABLE, CoreClient, Row

COLUMNS = ("group", "x", "y", "z")
SCHEMA = parse_schema(
    {"table": TABLE, "columns": [{"name": name, "type": "string" if name == "group" else "number"} for name in COLUMNS]}
)


class InstantReplica(Replica):
    """A replica without retry delays, on the simulated clock."""

    def _create_core(self) -> ClientCore:
        seconds = count(step=1000)
        core = ClientCore(
            self.store,
            self._client_id,
            limits=self.limits,
            wall=self._wall,
            monotonic=lambda: float(next(seconds)),
            jitter=lambda: 0.0,
        )
        if self._has_subscription:
            core.connection_opened()
        return core


class SteppedCore:
    """The core, as the replica uses it."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    @property
    def cursor(self) -> int:
        return self._replica.core.cursor

    def request_pull(self) -> None:
        self._replica.core.request_pull()

    def next_request(self) -> Any:
        return self._replica.next_request()

    def receive(self, answer: Response) -> Changes:
        return self._replica.receive(answer)

    def edits(self) -> list[Edit]:
        return self._replica.edits()

    def retry(self, numbers: Collection[int]) -> Changes:
        return self._replica.step(lambda core: core.retry(numbers))

    def retry_drifted(self, clock_offset: float) -> Changes:
        return self._replica.step(lambda core: core.retry_drifted(clock_offset))

    def drop(self, numbers: Collection[int]) -> Changes:
        return self._replica.step(lambda core: core.drop(numbers))

    def connection_opened(self) -> None:
        self._replica.subscription_opened()

    def connection_closed(self) -> None:
        self._replica.subscription_closed()


class SteppedStore:
    """The store, read after the app's writes were recorded."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def position(self) -> Position:
        return self._replica.step(lambda _: self._replica.store.position())

    def edits(self, status: EditStatus | None = None, limit: int | None = None) -> list[Edit]:
        return self._replica.step(lambda _: self._replica.store.edits(status, limit))

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        return self._replica.step(lambda _: self._replica.store.known(keys))


class WholeClient(CoreClient):
    """A client whose app writes by SQL over a separate connection."""

    def __init__(self, name: str, group: str, skew: int, *, limits: CoreLimits | None = None, folder: Path) -> None:
        self._path = folder / f"{name}.db"
        self._name = name
        self._replica: Replica | None = None
        super().__init__(name, group, skew, limits=limits)

    @property
    def rows(self) -> dict[str, Row]:
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        found = self._db.execute(f"SELECT row_id, {names} FROM {TABLE}").fetchall()
        return self.readable({row_id: dict(zip(COLUMNS, cells, strict=True)) for row_id, *cells in found})

    @staticmethod
    def readable(rows: dict[str, Row]) -> dict[str, Row]:
        """The rows without NULLs, because a table cannot distinguish NULL from a value that was never set."""
        return {row_id: {name: cell for name, cell in row.items() if cell is not None} for row_id, row in rows.items()}

    def edit(self, op: Op, row_id: str, values: Row, now: int) -> None:
        self.now = now
        self.named.add(row_id)
        names = [f'"{name}"' for name in values]
        if op == "DELETE":
            self._write(f"DELETE FROM {TABLE} WHERE row_id = ?", [row_id])
        elif row_id in self.rows:
            changes = ", ".join(f"{name} = ?" for name in names) or "row_id = row_id"
            self._write(f"UPDATE {TABLE} SET {changes} WHERE row_id = ?", [*values.values(), row_id])
        else:
            marks = ", ?" * len(names)
            columns = "".join(f", {name}" for name in names)
            # REPLACE meets an existing row in no history, and must have no effect
            self._write(
                f"INSERT OR REPLACE INTO {TABLE} (row_id{columns}) VALUES (?{marks})", [row_id, *values.values()]
            )

    def finish(self, answers: list[Response]) -> list[Changes]:
        frames = [answer for answer in answers if isinstance(answer, CheckpointFrame)]
        if not frames:
            return super().finish(answers)
        assert self._replica is not None
        for frame in frames:
            self._look(frame.page)
        end = answers[-1]
        cursor = end.cursor if isinstance(end, CheckpointEnd) else 0

        def messages() -> Any:
            yield from (protobuf.encode_response(frame.page) for frame in frames)
            if isinstance(end, NoResponse):
                raise UnreachableError(end.reason)

        with suppress(UnreachableError):
            load_checkpoint(self._replica, Checkpoint(cursor, messages()), lambda _: None)
            return []
        return [self._replica.receive(end)]

    def close(self) -> None:
        """Close the database."""
        if self._replica is not None:
            self._replica.close()
            self._db.close()

    def _write(self, statement: str, cells: list[Any]) -> None:
        self._db.execute(statement, cells)
        self._db.commit()

    def _open(self) -> Any:
        self.close()
        wall: Callable[[], int] = lambda: self.now + self.skew  # noqa: E731
        self._replica = InstantReplica(self._path, self._name, [SCHEMA], limits=self._limits, wall=wall)
        self._replica.store.bulk_from = 0
        self._replica.db.execute("PRAGMA synchronous = OFF")
        self._db: sqlite3.Connection = connect(self._path, autocommit=False)
        self._db.execute("PRAGMA synchronous = OFF")
        self.store = SteppedStore(self._replica)  # type: ignore[assignment]
        return SteppedCore(self._replica)
