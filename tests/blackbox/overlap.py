"""Concurrent requests of a history, and the serial orders that explain their answers.

Each answer is checked against what the gateway has acknowledged. While requests overlap, that depends on the order in
which it served them, which clients cannot see. So the answers of a group are right if one order of its requests
explains all answers about a shard. An order is invalid if it puts a request before one that was answered before the
request was sent. A push is one commit in each of its shards, and a page reads shard after shard, so each shard has an
order of
its own. Without sharding there is one.

Exact within a group, for each order:
- R5: a page names only rows that its client could see at some time, up to the page's place in the order.
- An INSERT or UPDATE is of a row that the client may see at this place.
- A complete page leaves its client with exactly the rows that it may see at this place: with all pushes before it and
no push after it. Clients with two requests in the group are not compared. Groups that change rules are not compared
either, because the change is one commit and the rows' new bucket keys are another.
- A flush has only whole pushes: those acknowledged before, and any of the group.

Exact in any order, because a client applies one answer after the other: no INSERT of a row that it has, and no answer
to a push with cursor 0.

Checked only after all answers of the group: every client has its rows, by its next complete page and at the end of the
history; broadcasts send a connection's missing rows; a change of rules takes effect.

A client does what a real one may do: it pulls and pushes concurrently, and drops a page that names a row of the push.
It also repeats a request, perhaps at another process, and takes one of the answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any

from tests.blackbox.clients import AnyClient, NamedClient, StockClient, WrongError
from tests.blackbox.exchange import headers_of
from tests.blackbox.law import Delta, Key, id_sum, key_of
from tests.blackbox.play import Game
from tests.blackbox.serial_orders import Outcome, SentRequest, orders
from tests.blackbox.server import RefusedError


class OverlappingGame(Game):
    """A history in which requests may be concurrent."""

    def play_together(self, group: list[tuple[float, str, AnyClient, list[Any]]]) -> None:
        """Run steps whose requests are concurrent, after all edits.

        Args:
            group: for each step the seconds by which its request is later than the first one, its kind, its client,
                and the rest of it.

        Raises:
            WrongError: no order explains the answers.
        """
        sent: list[SentRequest] = []
        for delay, kind, client, detail in group:
            prepared = self._prepare(kind, client, detail, sent)
            if prepared is not None:
                prepared.delay = delay
                sent.append(prepared)
        if not sent:
            return
        began = time.monotonic()
        with ThreadPoolExecutor(len(sent)) as threads:
            for done in [threads.submit(self._send, each, began, sent) for each in sent]:
                done.result()
        self.requests.append(f"{len(sent)} at the same time:")
        before = {client: set(client.ever_visible) for client in self.clients}
        for order in orders(sent):  # a broadcast may have been read at any time of the group
            outcome = Outcome(self.ledger.copy(), before, self.clients, self.server.shard_of)
            for each in order:
                outcome.follow(each, compare=False)
            for client in self.clients:
                client.ever_visible |= outcome.visible[client]
        for each in sent:
            self._take(each, sent)
        self._judge(sent, before)

    # -- before ------------------------------------------------------------------------------------------------------

    def _prepare(
        self, kind: str, client: AnyClient, detail: list[Any], others: list[SentRequest]
    ) -> SentRequest | None:
        """Return the request of a step; None if it has none, or if its client cannot send it concurrently."""
        mine = [each for each in others if each.client is client and each.own]
        new = SentRequest(kind, client, client.claims, client.process, 0.0)
        line = self._lines.get(client.name)
        match kind:
            case "pull" | "push":
                delivery = detail[-1]
                if any(each.kind in (kind, "connect") for each in mine):
                    return None
                if mine and (isinstance(client, NamedClient) or line is not None):
                    return None
                if isinstance(client, NamedClient) and client.doubt:
                    new.kind = "push"
                new.delivery = "answer lost" if delivery == "request lost" else delivery
                new.own, new.line = True, line
                return self._with_request(new, detail[0] if kind == "pull" else 0)
            case "other token":
                new.kind, new.claims, new.delivery = "pull", detail[0], "answer lost"
                new.request = client.pull_request(detail[1])
            case "old pull" | "old push":
                new.kind, new.delivery = kind.removeprefix("old "), "repeated"
                requests = client.pulls if new.kind == "pull" else client.pushes
                if not requests:
                    return None
                new.request = requests[-detail[0] :][0]
            case "rules":
                if any(each.kind == "rules" for each in others):
                    return None
                new.request = self._next_rules(detail[0])
            case "connect":
                if mine or not isinstance(client, StockClient):
                    return None
                self._leave_line(client)
                new.own = True
            case "flush":
                if any(each.kind == "flush" for each in others):
                    return None
            case _:
                self._do(kind, client, *detail)
                return None
        return new

    def _with_request(self, new: SentRequest, limit: int) -> SentRequest | None:
        client = new.client
        if new.kind == "pull":
            new.request = client.pull_request(limit)
            client.pulls.append(new.request)
            client.asked_since_wiped = True
            return new
        new.request = self._push_request(client)
        return new if new.request is not None else None

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self, each: SentRequest, began: float, group: list[SentRequest]) -> None:
        """Send a request, and wait for its answer unless that comes over a WebSocket."""
        time.sleep(max(0.0, began + each.delay - time.monotonic()))
        each.began = time.monotonic()
        path = f"/sync/{self.gateway}/{each.kind}"
        if each.line is not None:
            each.line.ask(each.request)
            return
        match each.kind:
            case "rules":
                self._send_rules(each.request, each.process)
            case "flush":
                each.flushed = list(self._flushed(each.process, [other for other in group if other.kind == "push"]))
            case "connect":
                token = self._token(each.client.name, each.claims)
                each.line = self.server.dial(self.gateway, token, each.process)
            case _:
                token = self._token(each.client.name, each.claims)
                headers = headers_of(each.client)
                each.answer = self._call("POST", path, token, each.request, headers, each.process)
        each.ended = time.monotonic()

    def _flushed(self, process: int, pushes: list[SentRequest]) -> Iterator[list[SentRequest]]:
        """Flush every shard, which may contain some of these pushes; yield the pushes that it contained.

        Raises:
            WrongError: a shard's log has other deltas than the acknowledged ones and whole pushes.
        """
        for shard in self.server.shards:
            batch = self.server.staging("plan", process, gateway=self.gateway, shard=shard, max_deltas=10**9)
            for some in _subsets(pushes):
                ids = [*self._unflushed.get(shard, ()), *self._new_ids(shard, some)]
                if (batch["deltas"] if batch is not None else 0) != len(ids):
                    continue
                if batch is None or self._confirm(process, shard, batch, ids):
                    yield some
                    break
            else:
                raise WrongError(f"no deltas that were pushed to shard {shard!r} are those of {batch}")

    def _confirm(self, process: int, shard: str, batch: dict[str, Any], ids: list[str]) -> bool:
        confirmed = {"batch_id": batch["batch_id"], "deltas": len(ids), "id_sum": id_sum(ids)}
        try:
            self.server.staging("confirm", process, **confirmed)
        except RefusedError:
            return False
        self.server.staging("trim", process, gateway=self.gateway, shard=shard)
        return True

    def _new_ids(self, shard: str, pushes: list[SentRequest]) -> list[str]:
        """The ids that these pushes add to a shard."""
        pushed: list[Delta] = [delta for each in pushes for delta in each.request["deltas"]]
        new = self.ledger.copy().take(pushed)
        return [delta["deltaId"] for delta in new if self.server.shard_of(delta["table"]) == shard]

    # -- after -------------------------------------------------------------------------------------------------------

    def _take(self, each: SentRequest, group: list[SentRequest]) -> None:
        """Let the client apply its answer."""
        client = each.client
        if each.answer is not None:
            self._note(f"  {each}", each.answer)
        else:
            self.requests.append(f"  {each}")
        if each.kind == "connect":
            assert each.line is not None
            self._lines[client.name] = each.line
        elif each.kind == "push":
            self._take_push(each)
        elif each.kind == "pull":
            self._take_pull(each, group)

    def _take_push(self, each: SentRequest) -> None:
        client = each.client
        if each.line is not None:
            page = self._answer(client)
            cursor = int(page["serverHlc"]) if page is not None else None
        else:
            assert each.answer is not None
            if each.answer.status != 200:
                raise WrongError(f"a push is answered with {each.answer.status} {each.answer.body!r}")
            cursor = int(each.answer.json["serverHlc"])
        if not each.own:
            return
        client.proven = client.proven or not self.reindexing
        if each.delivery == "answer lost" or cursor is None:
            self._cut(client)
            client.answer_lost(push=True)
        else:
            client.pushed(each.request["deltas"], cursor)

    def _take_pull(self, each: SentRequest, group: list[SentRequest]) -> None:
        client = each.client
        lost = each.delivery == "answer lost"
        if each.line is not None:
            each.page = self._answer(client, drop=lost)
        elif (answer := each.answer) is not None and answer.status == 200:
            each.page = answer.json
        elif answer is not None and answer.status == 409 and isinstance(client, NamedClient):
            if each.own and client.cursor == int(each.request["sinceHlc"]):
                client.resync()
            return
        else:
            raise WrongError(f"a pull is answered with {answer and (answer.status, answer.body)}")
        if not each.own:
            if lost:
                client.answer_lost(push=False)
            return
        page = each.page
        beside = [other for other in group if other.own and other.client is client and other is not each]
        pushed = {key_of(delta) for other in beside if other.kind == "push" for delta in other.request["deltas"]}
        if page is None or lost or any(key_of(delta) in pushed for delta in page["deltas"]) or not client.take(page):
            if each.line is not None:
                self._cut(client)
            client.answer_lost(push=False)
            return
        if each.line is not None:
            each.line.pulled, each.line.more = True, page["hasMore"]
        if not page["hasMore"]:
            client.proven = client.proven or (client.cursor > 1 and not self.reindexing)
            if client.settled and not beside:
                each.rows = {key: dict(row) for key, row in client.rows.items()}

    # -- the verdict -------------------------------------------------------------------------------------------------

    def _judge(self, sent: list[SentRequest], before: dict[AnyClient, set[Key]]) -> None:
        """Find the orders that explain the answers in each shard, and record their outcomes.

        Args:
            sent: the requests, answered.
            before: by client, the rows that it could see before them.

        Raises:
            WrongError: no order explains a shard.
        """
        explained = [outcome for shard in self.server.shards for outcome in self._explain(sent, before, shard)]
        for client in self.clients:
            client.ever_visible = set().union(*(outcome.visible[client] for outcome in explained))
            shown = [claims for outcome in explained for claims in outcome.shown[client]]
            client.shown = [claims for place, claims in enumerate(shown) if claims not in shown[:place]]
        flushed = {
            shard: self._new_ids(shard, pushes)
            for each in sent
            if each.kind == "flush"
            for shard, pushes in zip(self.server.shards, each.flushed, strict=True)
        }
        for shard in flushed:
            self._unflushed[shard] = []
        for each in sent:
            if each.kind == "push":
                for delta in self.ledger.take(each.request["deltas"]):
                    shard = self.server.shard_of(delta["table"])
                    if delta["deltaId"] not in flushed.get(shard, ()):
                        self._unflushed.setdefault(shard, []).append(delta["deltaId"])
            elif each.kind == "rules":
                self._have_rules(each.request)
            elif each.kind == "connect":
                self._follow_claims(each.client)
        self._note_visible_rows()

    def _explain(self, sent: list[SentRequest], before: dict[AnyClient, set[Key]], shard: str) -> list[Outcome]:
        """Return the outcomes that explain the answers about a shard's rows."""
        compare = not self.reindexing and all(each.kind != "rules" for each in sent)
        explained: list[Outcome] = []
        why: list[str] = []
        for order in orders(sent):
            outcome = Outcome(self.ledger.copy(), before, self.clients, self.server.shard_of, shard)
            wrong = next((found for each in order if (found := outcome.follow(each, compare=compare))), None)
            if wrong is None:
                explained.append(outcome)
            else:
                why.append(f"{wrong} [{', then '.join(f'{each.client.name} {each.kind}' for each in order)}]")
        if not explained:
            raise WrongError(f"no order explains the answers in shard {shard!r}: {'; '.join(why[:3])}")
        return explained


def _subsets(pushes: list[SentRequest]) -> Iterator[list[SentRequest]]:
    for size in range(len(pushes) + 1):
        for some in combinations(pushes, size):
            yield list(some)
