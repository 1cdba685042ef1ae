"""Sends the requests of a history's clients over HTTP and WebSockets, and checks that no answer has forbidden rows."""

from __future__ import annotations

import json
from typing import Any

from tests.blackbox.clients import Client, NamedClient, Page, StockClient, WrongError
from tests.blackbox.law import Delta, Key, Ledger, erasing, key_of, shows
from tests.blackbox.line import Line
from tests.blackbox.server import Answer, Server, sign

START_MS = 1_750_000_000_000
"""The wall time, in milliseconds, at which every history begins."""


class Exchange:
    """Sends the clients' requests; records acknowledged deltas and the rows that each client could see."""

    def __init__(self, server: Server, gateway: str) -> None:
        self.server = server
        self.gateway = gateway
        self.ledger = Ledger()
        self.clients: list[Client] = []
        self.reindexing = False
        self.requests: list[str] = []
        """The requests and their answers, in order, for the report."""
        self._tokens: dict[str, str] = {}
        self._unflushed: dict[str, list[str]] = {}
        """Shard → ids of deltas that were acknowledged since its last flush."""
        self._lines: dict[str, Line] = {}
        self._left: list[tuple[Client, dict[str, Any], Line]] = []
        """Connections that their clients closed, and that the server may still consider open."""

    # -- HTTP --------------------------------------------------------------------------------------------------------

    def _token(self, sub: str, claims: dict[str, Any], role: str = "client") -> str:
        named = json.dumps([sub, claims, role])
        if named not in self._tokens:
            self._tokens[named] = sign(sub, self.gateway, claims, role)
        return self._tokens[named]

    def _show_token(self, client: Client) -> str:
        client.shown = [client.claims]
        return self._token(client.name, client.claims)

    def _call(
        self,
        method: str,
        path: str,
        token: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        process: int = 0,
    ) -> Answer:
        return self.server.call(method, path, token, body, headers, process)

    def _ask(self, client: Client, request: dict[str, Any]) -> Answer:
        token = self._show_token(client)
        path = f"/sync/{self.gateway}/pull"
        answer = self._call("POST", path, token, request, headers_of(client), client.process)
        self._note(f"{named(client, client.claims)} pulls {brief(request)}", answer)
        return answer

    def _page(self, client: Client, answer: Answer, request: dict[str, Any]) -> Page | None:
        """Return the checked page of an answer; None if the client must start again from cursor 0."""
        if answer.status == 409 and isinstance(client, NamedClient):
            if client.cursor == int(request["sinceHlc"]):
                client.resync()
            return None
        if answer.status != 200:
            raise WrongError(f"a pull is answered with {answer.status} {answer.body!r}")
        page: Page = answer.json
        self._check_page(client, page, now=True)
        if not page["hasMore"]:  # so the server has noticed the end of earlier connections with other claims
            there = [client.claims, *(claims for whose, claims, _ in self._left if whose is client)]
            client.followed = [claims for claims in client.followed if claims in there]
        return page

    def _give(self, client: Client, request: dict[str, Any]) -> int:
        """Push, and return the cursor of the answer."""
        token = self._show_token(client)
        path = f"/sync/{self.gateway}/push"
        answer = self._call("POST", path, token, request, headers_of(client), client.process)
        self._note(f"{named(client, client.claims)} pushes {brief(request)}", answer)
        if answer.status != 200:
            raise WrongError(f"a push is answered with {answer.status} {answer.body!r}")
        self._acknowledged(request["deltas"])
        return int(answer.json["serverHlc"])

    def _acknowledged(self, deltas: list[Delta]) -> None:
        """Record the deltas of an acknowledged push."""
        for each in self.ledger.take(deltas):
            self._unflushed.setdefault(self.server.shard_of(each["table"]), []).append(each["deltaId"])
        self._note_visible_rows()

    def _erase(self, process: int, table: str, row_id: str) -> None:
        """Erase every value of a row, if the row ever had any."""
        if (table, row_id) not in self.ledger.keys:
            return
        erasure = self.server.staging("erase_row", process, gateway=self.gateway, table=table, row_id=row_id)
        self.requests.append(f"erase {table} {row_id} -> up to {erasure['hlc']}")
        self._acknowledged([erasing((table, row_id), erasure["hlc"])])

    def _check_page(self, client: Client, page: Page, *, now: bool) -> None:
        """Raise if a page has rows that its client may not see; with `now`, the page was read after the last step."""
        ledger = self.ledger if now else None
        if (found := wrong_rows(client, page, client.claims, client.ever_visible, ledger)) is not None:
            raise WrongError(found)

    def _note_visible_rows(self) -> None:
        """Record the rows that each client may see now."""
        for client in self.clients:
            for claims in (client.claims, *client.shown, *client.followed):
                client.ever_visible.update(self.ledger.visible(claims))

    def _note(self, asked: str, answer: Answer) -> None:
        self.requests.append(f"{asked} -> {answer.status} {brief(answer.json)}")

    # -- lines -------------------------------------------------------------------------------------------------------

    def _connect(self, client: Client) -> None:
        """Open a new connection; the server may still serve the old one."""
        if not isinstance(client, StockClient):
            return
        self._leave_line(client)
        self._follow_claims(client)
        token = self._show_token(client)
        self._lines[client.name] = self.server.dial(self.gateway, token, client.process)
        self.requests.append(f"{named(client, client.claims)} connects")

    def _leave_line(self, client: Client) -> None:
        """Forget a client's connection, which the server may still serve."""
        if client.name in self._lines:
            self._left.append((client, client.claims, self._lines.pop(client.name)))

    def _follow_claims(self, client: Client) -> None:
        """Record that a client's connection has its current claims."""
        if client.claims not in client.followed:
            client.followed.append(client.claims)

    def _cut(self, client: Client) -> None:
        line = self._lines.pop(client.name, None)
        if line is not None:
            line.cut()
            self.requests.append(f"{client.name}'s line is lost")

    def _all_ended(self) -> None:
        """Close every connection."""
        for process in range(self.server.processes):
            self._ended_with(process)

    def _ended_with(self, process: int) -> None:
        """Close every connection to a process that was restarted."""
        ended = {name: line for name, line in self._lines.items() if line.process == process}
        left = [each for each in self._left if each[2].process == process]
        for line in (*ended.values(), *(line for _, _, line in left)):
            line.cut()
        self._lines = {name: line for name, line in self._lines.items() if name not in ended}
        self._left = [each for each in self._left if each not in left]

    def _ask_live(self, client: Client, request: dict[str, Any]) -> None:
        self._lines[client.name].ask(request)
        self.requests.append(f"{client.name} {spell(client.claims)} pulls {brief(request)} over its line")

    def _give_live(self, client: Client, request: dict[str, Any]) -> int | None:
        """Push over a connection; return the answer's cursor, or None if a broadcast ended the connection first."""
        self._lines[client.name].ask(request)
        self.requests.append(f"{client.name} {spell(client.claims)} pushes {brief(request)} over its line")
        page = self._answer(client)
        self._acknowledged(request["deltas"])
        return int(page["serverHlc"]) if page is not None else None

    def _answer(self, client: Client, *, drop: bool = False) -> Page | None:
        """Return the answer to a request on a connection; None if a broadcast before it could not be applied."""
        line, taken = self._lines[client.name], not drop
        while True:
            frame = line.next()
            assert frame is not None
            if not frame.broadcast:
                self.requests.append(f"  {client.name} is answered {brief(frame.page)}")
                return frame.page if taken or drop else None
            taken = taken and self._apply_broadcast(client, frame.page)

    def _apply_broadcast(self, client: Client, page: Page) -> bool:
        """Apply a broadcast, and return whether that was possible."""
        self.requests.append(f"  {client.name} receives {brief(page)}")
        assert isinstance(client, StockClient)
        self._check_page(client, page, now=False)
        line = self._lines[client.name]
        line.more = page["hasMore"]
        if client.hear(page):
            return True
        line.missed = True  # a broadcast without a cursor comes again, in the next pull or on another connection
        return page["serverHlc"] == "0"

    def _read_broadcasts(self, client: Client, seconds: float) -> bool:
        """Apply broadcasts until none arrives for `seconds`, and return whether there were any."""
        line, any_ = self._lines.get(client.name), False
        while line is not None and (frame := line.next(seconds)) is not None:
            any_ = True
            if not self._apply_broadcast(client, frame.page):
                self._cut(client)
                line = None
        return any_


def wrong_rows(
    client: Client, page: Page, claims: dict[str, Any], ever_visible: set[Key], ledger: Ledger | None
) -> str | None:
    """Return what is wrong with the rows of a page.

    Args:
        client: that the page was sent to.
        page: the page.
        claims: in the token for which it was made.
        ever_visible: the rows that the client could see at any time.
        ledger: of the time at which the page was made; None if unknown.
    """
    for delta in page["deltas"]:
        key = key_of(delta)
        if key not in client.named and key not in ever_visible:
            return f"{client.name} is sent the id {key}, which it could never see"
        if ledger is not None and delta["op"] != "DELETE":
            row = ledger.row(key)
            if row is None or not shows(ledger.rules, key[0], row, claims):
                return f"{client.name} is sent {key}, which it may not see"
    return None


def named(client: Client, claims: dict[str, Any], process: int | None = None) -> str:
    """The name of a client in the report, with its process unless that is the first one."""
    process = client.process if process is None else process
    return f"{client.name} {spell(claims)}{f' at {process}' if process else ''}"


def headers_of(client: Client) -> dict[str, str]:
    return {"X-LakeSync-Client": "blackbox"} if client.names_itself else {}


def brief(value: dict[str, Any]) -> str:
    """A message, shortened for the report."""
    shown = {name: each for name, each in value.items() if name not in ("deltas", "clientId")}
    deltas = ", ".join(
        f"{each['op']} {each['table']}/{each['rowId']} {_cells(each)} @{int(each['hlc']) - (START_MS << 16)}"
        for each in value.get("deltas", ())
    )
    return f"{spell(shown)} [{deltas}]"


def _cells(delta: Delta) -> str:
    return spell({cell["column"]: cell["value"] for cell in delta["columns"]})


def spell(value: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {each}" for name, each in value.items()) + "}"
