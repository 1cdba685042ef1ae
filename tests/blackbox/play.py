"""Plays one history against a gateway, and compares the clients with the oracle."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

from tests.blackbox.client_steps import BROADCAST_PATIENCE, ClientSteps
from tests.blackbox.clients import AnyClient, NamedClient, StockClient, WrongError
from tests.blackbox.exchange import brief, headers_of, spell
from tests.blackbox.histories import FILLERS, RULES, groups_of
from tests.blackbox.law import id_sum, shows
from tests.blackbox.line import LineEndedError
from tests.blackbox.server import DEADLINE, Request, Server
from tests.blackbox.steps import TABLES, Step

PATIENCE = 20.0
"""Seconds within which rows must be reindexed after a change of rules."""


class Game(ClientSteps):
    """A history in progress."""

    def __init__(self, server: Server, gateway: str, setting: dict[str, Any]) -> None:
        super().__init__(server, gateway, setting)
        self._rules = 0
        self._backups: dict[str, Any] = {}
        self.clients = [self._client(f"c{place}", *each) for place, each in enumerate(setting["clients"], 1)]
        self._people = list(self.clients)
        """The current device of each user."""
        self._ready = False
        self._held: set[int] = set()
        """Processes whose notices are held back."""
        self._deafened: set[int] = set()
        """Processes that cannot listen."""
        self._markers = 0

    @staticmethod
    def _client(name: str, kind: str, claims: dict[str, Any], skew: int) -> AnyClient:
        if kind == "named":
            return NamedClient(name, dict(claims), skew)
        return StockClient(name, dict(claims), skew, letter=kind == "letter")

    def play(self, steps: list[Step]) -> Iterator[Request | None]:
        """Run every step and compare the clients; yields when the caller must kill and restart the server.

        Raises:
            WrongError: a promise is broken.
        """
        try:
            self._set_rules(self.setting["rules"])
            if self.setting["fill"]:
                self._fill()
            for group in groups_of(steps):
                if len(group) > 1:
                    found = [(delay, kind, self._person(who), detail) for delay, (kind, who, *detail) in group]
                    self.play_together(found)
                    continue
                ((_, (kind, who, *detail)),) = group
                match kind:
                    case "kill":
                        yield from self._killed(self._person(who))
                    case "device":
                        self._people[who % len(self._people)] = self._another(self._person(who), *detail)
                    case _:
                        self._do(kind, self._person(who), *detail)
            self._finish()
        except LineEndedError as error:
            raise WrongError(f"a line was ended: {error}") from error
        finally:
            self._release()
            self._all_ended()

    def play_together(self, group: list[tuple[float, str, AnyClient, list[Any]]]) -> None:
        """Run steps whose requests are concurrent."""
        raise NotImplementedError

    def _person(self, who: int) -> AnyClient:
        return self._people[who % len(self._people)]

    def _another(self, client: AnyClient, kind: str) -> AnyClient:
        """A new, empty device of the same user; the earlier device is not used again until the end."""
        self._cut(client)
        new = self._client(f"c{len(self.clients) + 1}", kind, client.claims, client.skew)
        new.process = client.process
        self.clients.append(new)
        self._note_visible_rows()
        return new

    # -- steps -------------------------------------------------------------------------------------------------------

    def _do(self, kind: str, client: AnyClient, *detail: Any) -> None:
        match kind:
            case "edit":
                self._edit(client, *detail)
            case "pull":
                self._pull(client, *detail)
            case "push":
                self._push(client, *detail)
            case "claims":
                self._cut(client)
                client.claims = dict(detail[0])
                self._note_visible_rows()
            case "rules":
                self._set_rules(*detail, process=client.process)
            case "process":
                client.process = detail[0] % self.server.processes
            case "hold":
                self._hold(client.process)
            case "release":
                self._release()
            case "deafen":
                self._deafen(client.process)
            case "deaf":
                self._deaf(client, *detail)
            case "rest":
                self._rest()
            case "wipe":
                self._cut(client)
                self.now += 100
                client.wipe()
            case "reload":
                self._cut(client)
                client.reload()
            case "backup":
                self._backups[client.name] = client.backup()
                client.last_hlc += 1  # its clock has advanced, so no later edit has the stamp of one in the backup
            case "restore":
                if client.name in self._backups:
                    self._cut(client)
                    self.now += 100
                    client.restore(self._backups[client.name])
            case "clock":
                if not isinstance(client, NamedClient):  # such a client stores its clock
                    client.skew += detail[0]
                    client.last_hlc, client.clock = 0, {}
            case "old pull":
                for request in client.pulls[-detail[0] :][:1]:
                    self._page(client, self._ask(client, request), request)
            case "old push":
                for request in client.pushes[-detail[0] :][:1]:
                    self._give(client, request)
            case "odd pull":
                self._odd_pull(client, *detail)
            case "odd push":
                self._push(client, "whole", odd=True)
            case "other token":
                self._ask_as_another(client, detail[0], client.pull_request(detail[1]))
            case "late token":
                for request in client.pulls[-detail[2] :][:1]:
                    self._ask_as_another(client, detail[0], {**request, "maxDeltas": detail[1]})
            case "at once":
                self._at_once(client, *detail)
            case "flush":
                self._flush(client.process)
            case "erase":
                self._erase(client.process, *detail)
            case "connect":
                self._connect(client)
            case "cut":
                self._cut(client)
            case "hear":
                if client.name in self._lines:
                    self._lines[client.name].await_frame(*detail or (0.0,))
                self._read_broadcasts(client, 0.01)
            case "cross":
                self._cross(client, *detail)
            case _:
                raise ValueError(f"no such step: {kind}")

    def _set_rules(self, place: int, process: int = 0) -> None:
        rules = self._next_rules(place)
        self._send_rules(rules, process)
        self.requests.append(f"rules {spell(rules)}{f' at {process}' if process else ''}")
        self._have_rules(rules)

    def _next_rules(self, place: int) -> dict[str, Any]:
        self._rules += 1
        return {"version": self._rules, "buckets": RULES[place]}

    def _send_rules(self, rules: dict[str, Any], process: int) -> None:
        anything = {"writeScope": "any"}  # as in the reference: these clients write to rows that they cannot see
        token = self._token("admin", {}, "admin")
        for kind, body in (("sync-rules", rules), ("settings", anything)):
            answer = self._call("POST", f"/admin/{kind}/{self.gateway}", token, body, process=process)
            if answer.status != 200:
                raise WrongError(f"{kind} are answered with {answer.status} {answer.body!r}")

    def _have_rules(self, rules: dict[str, Any]) -> None:
        """Record that rules are active."""
        self.ledger.rules = rules
        self.reindexing = self._ready
        self._note_visible_rows()

    def _rest(self) -> None:
        """Wait until all rows are reindexed by the active rules, so that a checkpoint would be possible."""
        deadline = time.monotonic() + DEADLINE
        while self.reindexing:
            self.reindexing = self.server.staging("cut_point", gateway=self.gateway)["rules_version"] is None
            if time.monotonic() > deadline:
                raise WrongError(f"rows are not reindexed by the rules after {DEADLINE} s")
            time.sleep(0.01)

    def _fill(self) -> None:
        """Insert so many hidden rows that a change of rules takes effect in the background."""
        deleted = self.setting["fill"] == "deleted"
        columns = [] if deleted else [{"column": "team", "value": "nobody"}, {"column": "kind", "value": "none"}]
        deltas = [
            {
                "op": "DELETE" if deleted else "INSERT",
                "table": TABLES[number % len(TABLES)],
                "rowId": f"f{number:05}",
                "clientId": "filler",
                "columns": columns,
                "hlc": str((self.now << 16) + number),
                "deltaId": hashlib.sha256(b"%d" % number).hexdigest(),
            }
            for number in range(FILLERS[self.setting["fill"]])
        ]
        for place in range(0, len(deltas), 2_500):
            body = {"clientId": "filler", "deltas": deltas[place : place + 2_500], "lastSeenHlc": "0"}
            answer = self._call("POST", f"/sync/{self.gateway}/push", self._token("filler", {}), body)
            assert answer.status == 200, answer.body
        for each in deltas:
            self._unflushed.setdefault(self.server.shard_of(each["table"]), []).append(each["deltaId"])
        self._ready = True

    def _flush(self, process: int) -> None:
        """Flush every shard as the pipeline does: plan a batch, confirm it, trim the log.

        Raises:
            WrongError: the log differs from the deltas that were acknowledged since the last flush.
        """
        staging = self.server.staging
        for shard in self.server.shards:
            batch = staging("plan", process, gateway=self.gateway, shard=shard, max_deltas=10**9)
            ids = self._unflushed.pop(shard, [])
            if (batch["deltas"] if batch is not None else 0) != len(ids):
                raise WrongError(f"{len(ids)} deltas of shard {shard!r} wait for a flush, not those of {batch}")
            if batch is not None:
                staging("confirm", process, batch_id=batch["batch_id"], deltas=len(ids), id_sum=id_sum(ids))
                staging("trim", process, gateway=self.gateway, shard=shard)

    def _killed(self, client: AnyClient) -> Iterator[Request | None]:
        """Kill a process, perhaps during a push, which is then repeated at another process or after the restart."""
        self._release()  # other processes wait for held-back notices, and this one for the others
        request = self._push_request(client)
        if request is None:
            yield None
            self._ended_with(self.server.died)
            return
        path = f"/sync/{self.gateway}/push"
        yield Request("POST", path, self._show_token(client), request, headers_of(client), client.process)
        self._ended_with(self.server.died)
        client.answer_lost(push=True)
        self._push(client, "whole")

    # -- notices between processes -----------------------------------------------------------------------------------

    def _hold(self, process: int) -> None:
        """Hold back the notices of other processes' commits from one process."""
        if self.server.proxy is not None:
            self.server.proxy.hold(process)
            self._held.add(process)
            self.requests.append(f"notices to {process} are late")

    def _release(self) -> None:
        """Deliver the notices that were held back, and resume listening."""
        self._restore()
        if self.server.proxy is not None and self._held:
            for process in self._held:
                self.server.proxy.release(process)
            self._held.clear()
            self.requests.append("notices are delivered")

    def _deafen(self, process: int) -> None:
        """Drop the notices of other processes' commits to one process."""
        if self.server.proxy is not None and process not in self._deafened:
            self.server.proxy.deafen(process)
            self._deafened.add(process)
            self.requests.append(f"notices to {process} are lost")

    def _restore(self) -> None:
        """Let processes listen again."""
        for process in self._deafened:
            assert self.server.proxy is not None
            self.server.proxy.restore(process)
            self.requests.append(f"{process} listens again")
        self._deafened.clear()

    def _deaf(self, client: AnyClient, writer: int, limit: int) -> None:
        """The process of a client's WebSocket is not notified that another process sends rows to the client over HTTP.

        It must not read the feed meanwhile, because no promise holds before it can know what the other process sent. So
        the WebSocket first brings a marker row, which shows that the process has read the feed, and the writer's rows
        go to the other process. The history continues when the process listens again.
        """
        line = self._lines.get(client.name)
        if self.server.proxy is None or line is None or not line.pulled or line.more or not client.settled:
            return
        if self.reindexing or not self._bring_row(client, line.process) or self._lines.get(client.name) is not line:
            return
        self._deafen(line.process)
        here, client.process = client.process, (line.process + 1) % self.server.processes
        other = self._person(writer)
        there, other.process = other.process, client.process
        if other is not client and other.name not in self._lines:
            self._push(other, "whole")
        request = client.pull_request(limit)
        page = self._page(client, self._ask(client, request), request)
        if page is not None:
            client.take(page)
        other.process, client.process = there, here
        self._restore()
        if page is not None and any(each["op"] != "DELETE" for each in page["deltas"]):
            line.await_frame(
                BROADCAST_PATIENCE
            )  # the process does not know that the client has these rows, and sends them again

    def _bring_row(self, client: AnyClient, process: int) -> bool:
        """Write a row that a client may see, and wait until its WebSocket brings it; False if it may see no row."""
        values = {"team": "abcdefg", "kind": "pq", "x": (0, 1, 2, 3)}
        rows = [dict(zip(values, each, strict=True)) for each in product(*values.values())]
        seen = ((table, row) for table in TABLES for row in rows if shows(self.ledger.rules, table, row, client.claims))
        found = next(seen, None)
        if found is None:
            return False
        self._markers += 1
        delta = {
            "op": "INSERT",
            "table": found[0],
            "rowId": f"marker{self._markers}",
            "clientId": "marker",
            "columns": [{"column": column, "value": value} for column, value in found[1].items()],
            "hlc": str((self.now << 16) + self._markers),
        }
        delta["deltaId"] = self._identity(delta)
        body = {"clientId": "marker", "deltas": [delta], "lastSeenHlc": "0"}
        answer = self._call("POST", f"/sync/{self.gateway}/push", self._token("marker", {}), body, process=process)
        self._note(f"marker pushes {brief(body)}", answer)
        assert answer.status == 200, answer.body
        self._acknowledged([delta])
        self._await_rows(client)
        return True

    # -- the verdict -------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Let every client push and pull until nothing is left, then compare its rows with those that it may see."""
        self._release()
        for client in self.clients:
            for _ in range(3):
                if client.outbox:
                    self._pull(client, 1000, "whole")
                    self._push(client, "whole")
        for client in self.clients:
            self._await_rows(client)
            self._cut(client)
        deadline = time.monotonic() + (PATIENCE if self.reindexing else 0.0)
        for client in self.clients:
            if client.outbox:
                raise WrongError(f"{client.name} cannot push what it has: {client.outbox}")
            self._catch_up(client)
            while self._difference(client) is not None and time.monotonic() < deadline:
                time.sleep(0.01)
                self._catch_up(client)
            self._compare(client, "in the end", force=True)
