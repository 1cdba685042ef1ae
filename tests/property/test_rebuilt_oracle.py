"""L1, L4, L11, R5 over stores that are lost, with or without unflushed pushes, and rebuilt."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, example, given, settings

from lakesync.engine.rebuild import LakePush, rebuild
from lakesync.model.types import StoredConnector
from lakesync.staging.records import GatewayConfig
from lakesync.wire.log import decode_body
from tests.property.feed_history import History, play
from tests.property.feed_model import StockClient
from tests.property.feed_steps import RULES, histories, skews

_UNKNOWN = ("rules", "rules begin", "reindex", "claims", "core claims", "erase")
"""Steps that a rebuilt store cannot know: earlier rules and claims, and erasures that the lake has not executed."""
_SIGHT = ("rules", "rules begin")
"""Steps before a client returns: the store cannot know the rows that it could see either."""
_LOG = "SELECT seq, arrival, client_id, body FROM log WHERE gateway = ? AND seq > ? ORDER BY seq"


@st.composite
def _lost(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """A history in which the store is lost once or twice; afterwards anything may happen except other claims.

    With other claims, a client would be sent DELETEs of later rows under keys of its earlier claims, which reveals
    their ids.
    """
    history: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 2))):
        history += [step for step in draw(histories) if step[0] not in _UNKNOWN]
        history.append(("lose", 0, draw(st.booleans())))
    return history + [step for step in draw(histories) if step[0] != "claims"]


class RebuiltHistory(History):
    """A history in which the store is lost."""

    histories = _lost()

    def __init__(self, *arguments: Any) -> None:
        self.lake: list[LakePush] = []
        self.carried = 0
        """The seq of the last flushed log row."""
        self.away: list[StockClient] = []
        """Clients that have not pulled since the store was lost."""
        self.gone: set[str] = set()
        """Rows with acknowledged deltas that were lost."""
        super().__init__(*arguments)

    # -- the lake ------------------------------------------------------------------------------------------------

    def gateways(self) -> list[str]:
        """As `rebuilding.History`."""
        return ["g"]

    def connectors(self, gateway: str) -> list[StoredConnector]:  # noqa: ARG002 as the protocol has it
        return []

    def config(self, gateway: str) -> GatewayConfig:  # noqa: ARG002 as the protocol has it
        """As `rebuilding.History`."""
        return self.known

    def pushes(self, gateway: str) -> Iterator[LakePush]:  # noqa: ARG002 as the protocol has it
        """As `rebuilding.History`."""
        return iter(self.lake)

    # -- the history's steps -------------------------------------------------------------------------------------

    def _do(self, kind: str, client: StockClient, *detail: Any) -> None:
        if kind == "lose":
            self._lose(*detail)
        else:
            if kind in _SIGHT:
                self._come_back()
            super()._do(kind, client, *detail)

    def _flush(self) -> None:
        asked = self.carried
        entries = self.world.engine.store.submit("g", lambda commit: commit._query(_LOG, asked)).result()  # type: ignore[attr-defined]
        for seq, arrival, client_id, body in entries:
            self.lake.append(LakePush(arrival, client_id, decode_body(body)))
            self.carried = seq
        super()._flush()

    def _lose(self, carried: bool) -> None:
        """Lose the store, after a flush or without, and rebuild it."""
        if carried:
            self._flush()
        world = self.world
        kept = {delta.delta_id for push in self.lake for delta in push.deltas}
        self.gone |= {delta.row_id for delta in world.log if delta.delta_id not in kept}
        world.log = [delta for delta in world.log if delta.delta_id in kept]
        world._seen &= kept
        self.known = world.engine.store.gateway_config("g")
        self.cuts = {}
        self.close()
        (done,) = rebuild(f"sqlite://{self.folder}", lambda: self.now + self.ahead, self, replace=True)
        self.carried = done.pushes
        for replaced in self.folder.parent.glob(f"{self.folder.name}.replaced-*"):
            shutil.rmtree(replaced)
        world.engine = self._open()
        for client in self.clients:
            client.disconnect()
        self.away = list(self.clients)

    def _come_back(self) -> None:
        for client in self.away:
            if not client.pulled:
                self._pull(client, 10, "whole")
            self._push(client, "whole")
            client.catch_up(self.world.gateway, 10)
        self.away = []

    def _check_rows(self, client: StockClient) -> None:
        """A client may still have a row of which some deltas were lost, and which the gateway does not show it now."""
        shown = self.world.visible_to(client.claims)
        kept = {row_id: row for row_id, row in client.rows.items() if row_id in shown or row_id not in self.gone}
        assert kept == shown, client.name


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(history=RebuiltHistory.histories, skews=skews, rules=st.integers(0, len(RULES) - 1))
@example(  # its own row, which it cannot see
    history=[("edit", 0, "INSERT", "r3", {}), ("push", 0, "whole"), ("flush", 0, 2), ("lose", 1, False)],
    skews=(0, 0, 0),
    rules=3,
)
@example(  # a row that was lost with the store is pushed again by a client that had received it
    history=[
        ("edit", 0, "INSERT", "r2", {"x": 1}),
        ("push", 0, "whole"),
        ("flush", 0, 1),
        ("edit", 0, "INSERT", "r1", {"x": 1}),
        ("push", 0, "whole"),
        ("cycle", 1, 2, "whole", "whole"),
        ("lose", 0, False),
        ("cycle", 0, 2, "whole", "whole"),
        ("edit", 1, "UPDATE", "r1", {"y": 2}),
        ("cycle", 1, 2, "whole", "whole"),
        ("cycle", 1, 2, "whole", "whole"),
    ],
    skews=(0, 0, 0),
    rules=0,
)
def test_l4_l11_every_client_of_a_rebuilt_store_ends_with_its_rows(
    history: list[tuple[Any, ...]], skews: tuple[int, ...], rules: int
) -> None:
    play(history, skews, rules, RebuiltHistory)
