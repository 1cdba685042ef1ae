"""What one client of a history does: edits, pushes and pulls, over HTTP and its WebSocket, compared with the oracle."""

from __future__ import annotations

import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.blackbox.clients import AnyClient, NamedClient, Page, StockClient, WrongError
from tests.blackbox.exchange import START_MS, Exchange, brief, named
from tests.blackbox.law import Delta, key_of
from tests.blackbox.server import Server

BROADCAST_PATIENCE = 20.0
"""Seconds within which a connected client must be sent its missing rows."""


class ClientSteps(Exchange):
    """The steps of a history that one client takes, or two at the same time."""

    def __init__(self, server: Server, gateway: str, setting: dict[str, Any]) -> None:
        super().__init__(server, gateway)
        self.setting = setting
        self.now = START_MS

    # -- edits and HTTP ------------------------------------------------------------------------------------------------

    def _edit(self, client: AnyClient, op: str, table: str, row_id: str, values: dict[str, Any], tick: int) -> None:
        self.now += tick
        key = (table, row_id)
        if op == "INSERT" and client.has(key):
            op = "UPDATE"
        if op == "DELETE":
            values = {}
        hlc = max((self.now + client.skew) << 16, client.last_hlc, client.clock.get(key, -1) + 1)
        while (key, hlc) in client.stamps:
            hlc += 1
        client.stamps.add((key, hlc))
        client.last_hlc = client.clock[key] = hlc
        delta: Delta = {
            "op": op,
            "table": table,
            "rowId": row_id,
            "clientId": client.name,
            "columns": [{"column": column, "value": value} for column, value in values.items()],
            "hlc": str(hlc),
        }
        delta["deltaId"] = self._identity(delta)
        client.named.add(key)
        client.edit(delta)

    def _identity(self, delta: Delta) -> str:
        digest = hashlib.sha256(json.dumps(delta).encode()).hexdigest()
        style = self.setting["ids"]
        if style == "prefix":
            return "0123456789abcdef" + digest[16:]
        return f"id-{digest[:20]}" if style == "text" else digest

    def _pull(self, client: AnyClient, limit: int, delivery: str) -> None:
        if isinstance(client, NamedClient) and client.doubt and not self._push(client, delivery):
            return
        if delivery == "request lost":
            self._cut(client)
            client.answer_lost(push=False)
            return
        request = client.pull_request(limit)
        client.pulls.append(request)
        client.asked_since_wiped = True
        if (line := self._lines.get(client.name)) is not None:
            line.await_frame(self.setting.get("late", 0.0))
            self._ask_live(client, request)
            self._take_live(client, delivery)
            return
        page = self._page(client, self._ask(client, request), request)
        if page is None:
            return
        if delivery == "answer lost":
            client.answer_lost(push=False)
        elif client.take(page) and not page["hasMore"]:
            client.proven = client.proven or (client.cursor > 1 and not self.reindexing)
            self._compare(client, "after a complete page")

    def _ask_as_another(self, client: AnyClient, claims: dict[str, Any], request: dict[str, Any]) -> None:
        """A pull with another token of the same client, whose answer is lost.

        The other token's claims count as the client's until its next request (`Client.shown`).
        """
        before, client.claims = client.claims, claims
        self._note_visible_rows()
        answer = self._ask(client, request)
        if answer.status == 200:
            self._check_page(client, answer.json, now=True)
        elif answer.status != 409 or not isinstance(client, NamedClient):
            raise WrongError(f"a pull is answered with {answer.status} {answer.body!r}")
        client.claims = before
        client.answer_lost(push=False)

    def _at_once(self, client: AnyClient, claims: dict[str, Any], limit: int, delivery: str) -> None:
        """A push and a pull with another token at the same time: the server may serve them in either order.

        The client takes the page after the answer to its push, and has the new token from then on. It drops a page that
        names a row of the push, like a page that names an unpushed edit.
        """
        self._cut(client)
        other = (client.process + 1) % self.server.processes
        push = self._push_request(client) if isinstance(client, StockClient) else None
        if push is None:
            return
        pull, token = client.pull_request(limit), self._show_token(client)
        client.shown = [claims]
        self._note_visible_rows()
        path, other_token = f"/sync/{self.gateway}", self._token(client.name, claims)
        with ThreadPoolExecutor(1) as thread:
            pulling = thread.submit(self._call, "POST", f"{path}/pull", other_token, pull, process=other)
            pushed = self._call("POST", f"{path}/push", token, push, process=client.process)
        pulled = pulling.result()
        self._note(f"{named(client, client.claims)} pushes {brief(push)}", pushed)
        self._note(f"  and meanwhile {named(client, claims, other)} pulls {brief(pull)}", pulled)
        if (pushed.status, pulled.status) != (200, 200):
            raise WrongError(f"two requests at once are answered with {pushed.body!r} and {pulled.body!r}")
        self._acknowledged(push["deltas"])
        page: Page = pulled.json
        self._check_page(client, page, now=False)
        client.pushed(push["deltas"], int(pushed.json["serverHlc"]))
        rows = {key_of(each) for each in push["deltas"]}
        if delivery == "whole":
            client.claims, client.shown = claims, [client.claims]
        if delivery != "whole" or not rows.isdisjoint(map(key_of, page["deltas"])) or not client.take(page):
            client.answer_lost(push=False)

    def _odd_pull(self, client: AnyClient, kind: str, limit: int) -> None:
        """A pull with a cursor that the gateway never issued."""
        self._cut(client)
        if isinstance(client, NamedClient) and client.doubt:
            return
        before = client.cursor
        odd = {"near": (before >> 16 << 16) + 40_000, "ahead": before + (1 << 40), "below": 77}[kind]
        client.cursor = odd
        request = client.pull_request(limit)
        client.asked_since_wiped = client.strange = True
        client.ever_visible |= self.ledger.keys  # the gateway cannot know which of these rows the client could see
        page = self._page(client, self._ask(client, request), request)
        if page is not None and (not page["deltas"] or not client.take(page)):
            client.cursor = before

    def _push(self, client: AnyClient, delivery: str, *, odd: bool = False) -> bool:
        """Push the unpushed edits; return whether the outcome is known."""
        request = self._push_request(client, odd=odd)
        if request is None:
            return True
        if delivery == "request lost":
            self._cut(client)
            client.answer_lost(push=True)
            return False
        cursor = self._give_live(client, request) if client.name in self._lines else self._give(client, request)
        client.proven = client.proven or not self.reindexing
        if delivery == "answer lost" or cursor is None:
            self._cut(client)
            client.answer_lost(push=True)
            return False
        client.pushed(request["deltas"], cursor)
        return True

    def _push_request(self, client: AnyClient, *, odd: bool = False) -> dict[str, Any] | None:
        """The next push of a client, if it has one."""
        may = not client.must_pull if isinstance(client, NamedClient) else client.asked_since_wiped
        if not may or not client.outbox:
            return None
        seen = client.cursor + (1 << 40) if odd else client.cursor
        request = {"clientId": client.name, "deltas": client.next_push(), "lastSeenHlc": str(seen)}
        client.pushes.append(request)
        return request

    # -- WebSockets ----------------------------------------------------------------------------------------------------

    def _cross(self, client: AnyClient, limit: int) -> None:
        """A pull over a WebSocket, and another client's push while it is served."""
        others = [each for each in self.clients if each is not client]
        if client.name not in self._lines:
            return
        client.asked_since_wiped = True
        self._ask_live(client, client.pull_request(limit))
        for other in others:
            self._push(other, "whole")
        self._take_live(client, "crossed")

    def _take_live(self, client: AnyClient, delivery: str) -> None:
        """Apply the answer to a pull, after the broadcasts that came before it."""
        page = self._answer(client, drop=delivery == "answer lost")
        if page is None or delivery == "answer lost":
            self._cut(client)
            client.answer_lost(push=False)
            return
        self._check_page(client, page, now=delivery != "crossed")
        line = self._lines[client.name]
        line.more = page["hasMore"]
        if not client.take(page):
            self._cut(client)
            return
        line.pulled = True
        client.proven = client.proven or (client.cursor > 1 and not self.reindexing and not page["hasMore"])
        if not page["hasMore"] and delivery != "crossed":
            self._compare(client, "after a complete page on its line")

    def _await_rows(self, client: AnyClient) -> None:
        """Wait until a connected client has every row that it may see."""
        deadline = time.monotonic() + BROADCAST_PATIENCE
        while (
            (line := self._lines.get(client.name)) is not None
            and (line.pulled or (client.proven and not line.missed and not client.strange))
            and client.settled
        ):
            if line.pulled and line.more and not self.setting["waits"]:
                self._pull(client, 1000, "whole")
            elif (found := self._difference(client)) is None:
                return
            elif not self._read_broadcasts(client, 0.05) and time.monotonic() > deadline:
                raise WrongError(f"{client.name} was not sent everything on its connection: {found}")

    # -- comparison ----------------------------------------------------------------------------------------------------

    def _catch_up(self, client: AnyClient) -> None:
        for _ in range(400):
            if (token := self.setting.get("token")) is not None:
                self._ask_as_another(client, token, client.pull_request(self.setting["last limit"]))
            request = client.pull_request(self.setting["last limit"])
            page = self._page(client, self._ask(client, request), request)
            if page is None:
                continue
            client.take(page)
            if not page["deltas"] and not page["hasMore"]:
                return
        raise WrongError(f"{client.name} pulls and pulls, and never comes to an end")

    def _difference(self, client: AnyClient) -> str | None:
        wanted, rows = self.ledger.visible(client.claims), client.rows
        wrong = [
            f"{key}: has {rows.get(key)}, should have {wanted.get(key)}"
            for key in sorted(wanted.keys() | rows.keys())
            if rows.get(key) != wanted.get(key) and key not in client.fought
        ]
        return "; ".join(wrong) or None

    def _compare(self, client: AnyClient, when: str, *, force: bool = False) -> None:
        if not client.settled or (self.reindexing and not force):
            return
        found = self._difference(client)
        if found is not None:
            raise WrongError(f"{client.name} {when}: {found}")
