"""Clients that push continuously and record what the gateway acknowledged."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import requests

from lakesync.model.delta import delta_id
from lakesync.model.types import ColumnValue, Op, RowDelta, SyncPush
from lakesync.wire.json import encode_push
from tests.integration.gateway_support import sign, wall_ms

GATEWAY = "storm"
ROWS = 150
_TIMEOUT = 10.0
_PAUSE = 0.1
"""Seconds before a push that failed is sent again: the gateway is being started."""


@dataclass
class Journal:
    """What one client knows at the end."""

    acknowledged: list[tuple[RowDelta, ...]] = field(default_factory=list)
    doubtful: list[tuple[RowDelta, ...]] = field(default_factory=list)
    """Pushes that were sent, never acknowledged, and abandoned."""
    repeats: int = 0
    """The number of repeated pushes, whether or not the first attempt was acknowledged."""
    refused: list[str] = field(default_factory=list)
    """Unexpected rejections."""


class Pusher(threading.Thread):
    """One client of the storm."""

    def __init__(self, client_id: str, where: Callable[[], str], seed: int, acknowledged: Callable[[], None]) -> None:
        """Args: where: returns the gateway's current address; acknowledged: called at each acknowledgement."""
        super().__init__(name=client_id, daemon=True)
        self.client_id = client_id
        self.journal = Journal()
        self._where = where
        self._random = random.Random(f"{seed} {client_id}")
        self._acknowledged = acknowledged
        self._hlc = 0
        self._ends = threading.Event()
        self._session = requests.Session()

    def end(self) -> None:
        """Finish the current push, and stop."""
        self._ends.set()

    def run(self) -> None:
        while not self._ends.is_set():
            deltas = self._new_push()
            if self._settle(deltas):
                self.journal.acknowledged.append(deltas)
                self._acknowledged()
            else:
                self.journal.doubtful.append(deltas)
            if self.journal.acknowledged and self._random.random() < 0.1:
                self.journal.repeats += 1
                self._send(self._random.choice(self.journal.acknowledged))

    def _settle(self, deltas: tuple[RowDelta, ...]) -> bool:
        """Send a push until it is acknowledged; one push in ten is abandoned after its first failure."""
        gives_up = self._random.random() < 0.1
        while not self._send(deltas):
            if gives_up or len(self.journal.refused) > 3:
                return False
            self.journal.repeats += 1
            threading.Event().wait(_PAUSE)
        return True

    def _send(self, deltas: tuple[RowDelta, ...]) -> bool:
        """Whether the push was acknowledged."""
        headers = {
            "Authorization": f"Bearer {sign(self.client_id, GATEWAY)}",
            "Content-Type": "application/json",
        }
        body = encode_push(SyncPush(self.client_id, deltas))
        try:
            answer = self._session.post(
                f"{self._where()}/sync/{GATEWAY}/push", data=body, headers=headers, timeout=_TIMEOUT
            )
            result: dict[str, Any] = answer.json()
        except (requests.RequestException, ValueError):
            return False
        if answer.status_code in (500, 503):
            return False
        if answer.status_code != 200 or result["accepted"] != len(deltas):
            self.journal.refused.append(f"{answer.status_code} {answer.text}")
            return False
        return True

    def _new_push(self) -> tuple[RowDelta, ...]:
        return tuple(self._new_delta() for _ in range(self._random.randint(1, 12)))

    def _new_delta(self) -> RowDelta:
        self._hlc = max(self._hlc + 1, wall_ms() << 16)
        row = f"r{self._random.randrange(ROWS)}"
        ops: tuple[Op, ...] = ("INSERT", "UPDATE", "UPDATE", "DELETE")
        op = self._random.choice(ops)
        names = () if op == "DELETE" else self._random.sample("abcd", self._random.randint(1, 3))
        columns = tuple(ColumnValue.of(name, self._random.randrange(10**6)) for name in sorted(names))
        identity = delta_id(client_id=self.client_id, hlc=self._hlc, table="t", row_id=row, columns=columns)
        return RowDelta(op, "t", row, self.client_id, columns, self._hlc, identity)
