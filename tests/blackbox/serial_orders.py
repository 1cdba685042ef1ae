"""The serial orders of concurrent requests, and whether one explains the answers. `OverlappingGame` calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Any

from tests.blackbox.clients import AnyClient, Page
from tests.blackbox.exchange import brief, named, spell, wrong_rows
from tests.blackbox.law import Key, Ledger, Values, key_of
from tests.blackbox.line import Line
from tests.blackbox.server import Answer


@dataclass(eq=False)
class SentRequest:
    """A request of a group and its answer."""

    kind: str
    """`pull`, `push`, `rules`, `flush` or `connect`."""
    client: AnyClient
    claims: dict[str, Any]
    """In its token."""
    process: int
    delay: float
    """Seconds after the start of the group."""
    request: Any = None
    own: bool = False
    """Whether its client awaits the answer."""
    delivery: str = "whole"
    """`repeated`: the network repeats it, unknown to the client."""
    line: Line | None = None
    """The connection over which it is sent; None for HTTP."""
    began: float = 0.0
    ended: float = float("inf")
    answer: Answer | None = None
    page: Page | None = None
    rows: dict[Key, Values] | None = None
    """The client's rows after a complete page; None if they cannot be compared."""
    flushed: list[list[SentRequest]] = field(default_factory=list)
    """By shard, the pushes of the group that a flush contained in addition to earlier ones."""

    def __str__(self) -> str:
        who = named(self.client, self.claims, self.process)
        over = " over its line" if self.line is not None else ""
        match self.kind:
            case "pull" | "push":
                return f"{who} {self.kind}s {brief(self.request)}{over}"
            case "rules":
                return f"rules {spell(self.request)} at {self.process}"
        return f"{who} {self.kind}"


def orders(sent: list[SentRequest]) -> Iterator[tuple[SentRequest, ...]]:
    """The possible orders in which the requests were served."""
    for order in permutations(each for each in sent if each.kind in ("pull", "push", "rules")):
        if not any(later.ended < sooner.began for sooner, later in combinations(order, 2)):
            yield order


class Outcome:
    """The tables of a shard after the requests of one order.

    Args:
        ledger: before the requests; they are added to it.
        visible: by client, the rows that it could see before them.
        clients: of the history.
        shard_of: the shard of a table.
        shard: the shard to check; None for all shards.
    """

    def __init__(
        self,
        ledger: Ledger,
        visible: dict[AnyClient, set[Key]],
        clients: list[AnyClient],
        shard_of: Callable[[str], str],
        shard: str | None = None,
    ) -> None:
        self._ledger = ledger
        self._clients = clients
        self._shard_of = shard_of
        self._shard = shard
        self.visible = {client: set(visible[client]) for client in clients}
        self.shown = {client: client.shown for client in clients}

    def follow(self, each: SentRequest, *, compare: bool) -> str | None:
        """Apply the order's next request; return what is wrong with its answer in this order."""
        if each.kind == "rules":
            self._ledger.rules = each.request
        else:
            self.shown[each.client] = [each.claims]
        if each.kind == "push":
            self._ledger.take(each.request["deltas"])
        for client in self._clients:
            for claims in (client.claims, *self.shown[client], *client.followed):
                self.visible[client].update(filter(self._here, self._ledger.visible(claims)))
        if each.page is None:
            return None
        client = each.client
        page = {**each.page, "deltas": [delta for delta in each.page["deltas"] if self._here(key_of(delta))]}
        found = wrong_rows(client, page, each.claims, self.visible[client], self._ledger)
        if found is None and compare and each.rows is not None:
            wanted = self._ledger.visible(each.claims)
            wrong = [
                f"{key}: has {each.rows.get(key)}, should have {wanted.get(key)}"
                for key in sorted(filter(self._here, wanted.keys() | each.rows.keys()))
                if each.rows.get(key) != wanted.get(key) and key not in client.fought
            ]
            found = f"{client.name} after a complete page: {'; '.join(wrong)}" if wrong else None
        return found

    def _here(self, key: Key) -> bool:
        """Whether a row's table is in this shard."""
        return self._shard is None or self._shard_of(key[0]) == self._shard
