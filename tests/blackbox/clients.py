"""Clients as plain dictionaries: the reference's stock client, and a client that sends its id and separates edits."""

from __future__ import annotations

import copy
from typing import Any

from tests.blackbox.law import NEVER, Delta, Key, Values, key_of, merge, stamp

Page = dict[str, Any]


class WrongError(AssertionError):
    """A promise is broken."""


class Client:
    """The state of every client: its token, its unacknowledged edits and its cursor."""

    names_itself = False

    def __init__(self, name: str, claims: dict[str, Any], skew: int) -> None:
        self.name = name
        self.claims = claims
        self.process = 0
        """The server's process to which its requests go."""
        self.shown = [claims]
        """The claims in the token of its last request, from whichever device; of several that were on their way at the
        same time, each that may have been the last.

        They count as the client's until a request with others: R5 protects the ids of rows that a client never could
        see, and with these claims it could have pulled at any moment. A gateway cannot tell two devices in turns from
        one client whose claims change back and forth.
        """
        self.skew = skew
        self.outbox: list[Delta] = []
        self.cursor = 0
        self.asked_since_wiped = True
        """A stock client pulls before it pushes."""
        self.proven = False
        """It applied a whole pull or pushed, and its database was neither lost nor restored since."""
        self.followed: list[dict[str, Any]] = []
        """Claims of connections that the server may consider open, or to have been open until now."""
        self.named: set[Key] = set()
        self.ever_visible: set[Key] = set()
        self.pulls: list[dict[str, Any]] = []
        self.pushes: list[dict[str, Any]] = []
        """Requests that were sent; the network may repeat them."""
        self.clock: dict[Key, int] = {}
        self.stamps: set[tuple[Key, int]] = set()
        """Every row and hlc of its edits: no two edits of a row have one stamp, even if its clock goes back."""
        self.last_hlc = 0
        self._fought: set[Key] = set()
        self.strange = False
        """It sent a cursor that was never issued, so the gateway cannot know which rows it has."""

    @property
    def rows(self) -> dict[Key, Values]:
        """The rows that its app shows."""
        raise NotImplementedError

    def has(self, key: Key) -> bool:
        return key in self.rows

    def pull_request(self, limit: int) -> dict[str, Any]:
        """Its next pull, with at most this number of deltas."""
        return {"clientId": self.name, "sinceHlc": str(self.cursor), "maxDeltas": limit}

    def backup(self) -> Any:
        """A copy of its database."""
        raise NotImplementedError

    @property
    def fought(self) -> set[Key]:
        """Rows for which it kept its own value although it was sent another one."""
        return self._fought

    @property
    def settled(self) -> bool:
        """Whether its rows can be compared with the expected rows."""
        return not self.outbox


class StockClient(Client):
    """The reference's: applies pages as plain SQL in one transaction, keeps its cursor in memory.

    A page that names a row with an unpushed edit is dropped whole, as if it had been lost. With `letter` it resolves
    such a row by hlc instead, as the reference does, and then lacks the values that it skipped.
    """

    def __init__(self, name: str, claims: dict[str, Any], skew: int, *, letter: bool = False) -> None:
        super().__init__(name, claims, skew)
        self.letter = letter
        self._rows: dict[Key, Values] = {}

    @property
    def rows(self) -> dict[Key, Values]:
        return self._rows

    def edit(self, delta: Delta) -> None:
        """Change the local row, as far as plain SQL can, and queue the delta."""
        key, values = key_of(delta), _values(delta)
        if delta["op"] == "DELETE":
            self._rows.pop(key, None)
        elif delta["op"] == "INSERT":
            self._rows[key] = values
        elif key in self._rows:
            self._rows[key].update(values)
        self.outbox.append(delta)

    def take(self, page: Page) -> bool:
        """Apply a page and its cursor (an empty page leaves the cursor); return False if it was dropped."""
        if not page["deltas"]:
            return True
        rows, outbox, fought = copy.deepcopy(self._rows), list(self.outbox), set(self._fought)
        for delta in page["deltas"]:
            key = key_of(delta)
            own = [each for each in outbox if key_of(each) == key]
            if own:
                if not self.letter:
                    return False
                fought.add(key)
                if stamp(delta) < max(map(stamp, own)):
                    continue
                if delta["op"] == "INSERT" and key in rows and any(each["op"] == "INSERT" for each in own):
                    return False  # both inserted the same row: the page fails until the edit is pushed
                outbox = [each for each in outbox if key_of(each) != key]
            if delta["op"] == "INSERT" and key in rows and key in self._fought:
                return False  # the row's DELETE was skipped: the page fails, and is requested again
            self._apply(rows, delta)
        self._rows, self.outbox, self._fought = rows, outbox, fought
        self.cursor = int(page["serverHlc"])
        return True

    def hear(self, page: Page) -> bool:
        """Apply a broadcast, and its cursor if that is higher; return False if it was dropped."""
        before = self.cursor
        taken = self.take(page)
        self.cursor = max(before, self.cursor)
        return taken

    def _apply(self, rows: dict[Key, Values], delta: Delta) -> None:
        key = key_of(delta)
        if delta["op"] == "DELETE":
            rows.pop(key, None)
        elif delta["op"] == "INSERT":
            if key in rows:
                raise WrongError(f"{self.name} is sent INSERT of {key}, which it has: its page fails for ever")
            rows[key] = _values(delta)
        elif key in rows:
            rows[key].update(_values(delta))

    def next_push(self) -> list[Delta]:
        return list(self.outbox)

    def pushed(self, sent: list[Delta], cursor: int) -> None:
        """Take the answer to its push."""
        if cursor <= 0:
            raise WrongError(f"{self.name}'s push is answered with cursor {cursor}: it asks for a checkpoint again")
        ids = {(each["deltaId"], each["hlc"]) for each in sent}
        self.outbox = [each for each in self.outbox if (each["deltaId"], each["hlc"]) not in ids]
        self.cursor = cursor

    def answer_lost(self, *, push: bool) -> None:
        """Note that no answer arrived."""

    def reload(self) -> None:
        """Reload the page: the cursor is lost, the database remains."""
        self.cursor = 0

    def wipe(self) -> None:
        """Lose the database."""
        self._rows, self.outbox, self.cursor = {}, [], 0
        self.asked_since_wiped = False
        self.proven = False

    def backup(self) -> Any:
        return copy.deepcopy((self._rows, self.outbox, self._fought))

    def restore(self, kept: Any) -> None:
        self._rows, self.outbox, self._fought = copy.deepcopy(kept)
        self.cursor = 0
        self.asked_since_wiped = False
        self.proven = False


class NamedClient(Client):
    """A client that sends `X-LakeSync-Client`: it stores rows and edits separately, and the cursor with the rows."""

    names_itself = True

    def __init__(self, name: str, claims: dict[str, Any], skew: int) -> None:
        super().__init__(name, claims, skew)
        self._known: dict[Key, list[Delta]] = {}
        """The deltas of each row since the gateway last deleted it."""
        self._walk: set[Key] | None = None
        """Rows named since the pull started from 0; at its end, all other rows are deleted."""
        self.doubt: list[Delta] = []
        """A push whose outcome is unknown; it is repeated before any other request."""
        self.current = False
        """Whether it has applied all rows that the gateway considers sent to it."""
        self.whole = False
        """Whether a pull was completed since the database was opened."""
        self.complete = False
        self.asked = False
        self.own = 0
        """It has all of its own edits up to this hlc."""

    @property
    def rows(self) -> dict[Key, Values]:
        found = {}
        edits: dict[Key, list[Delta]] = {}
        for each in self.outbox:
            edits.setdefault(key_of(each), []).append(each)
        for key in self._known.keys() | edits.keys():
            row = merge([*self._known.get(key, ()), *edits.get(key, ())])
            if row is not None:
                found[key] = row
        return found

    @property
    def must_pull(self) -> bool:
        """Whether its next request must be a pull."""
        return not self.asked and not self.doubt

    def pull_request(self, limit: int) -> dict[str, Any]:
        request = super().pull_request(limit)
        if self.cursor and not self.whole:
            request["ownHlc"] = str(self.own)
        return request

    def edit(self, delta: Delta) -> None:
        self.outbox.append(delta)
        if self.whole:
            self.own = self.last_hlc

    def take(self, page: Page) -> bool:
        if self.cursor == 0:
            self._walk = set()
        for delta in page["deltas"]:
            key = key_of(delta)
            known = self._known.setdefault(key, [])
            if (
                delta["op"] == "UPDATE"
                and merge([*known, *(each for each in self.outbox if key_of(each) == key)]) is None
            ):
                continue  # plain SQL ignores an UPDATE or a DELETE of a missing row
            if delta["op"] == "DELETE":
                known.clear()
            elif delta["op"] == "INSERT":
                known[:] = [each for each in known if each["op"] != "DELETE"]
            _fold(known, delta)
            if self._walk is not None:
                self._walk.add(key)
        self.cursor = int(page["serverHlc"])
        self.complete = self.current = not page["hasMore"]
        self.asked = True
        if self.complete:
            self.whole = True
            self.own = self.last_hlc
            if self._walk is not None:
                self._known = {key: known for key, known in self._known.items() if key in self._walk}
                self._walk = None
        return True

    def next_push(self) -> list[Delta]:
        self.doubt = self.doubt or list(self.outbox)
        return self.doubt

    def pushed(self, sent: list[Delta], cursor: int) -> None:
        for each in sent:
            _fold(self._known.setdefault(key_of(each), []), each)
            if self._walk is not None:
                self._walk.add(key_of(each))
        ids = {(each["deltaId"], each["hlc"]) for each in sent}
        self.outbox = [each for each in self.outbox if (each["deltaId"], each["hlc"]) not in ids]
        self.doubt = []
        if self.current and self.complete and 0 < self.cursor < cursor:
            self.cursor = cursor

    def answer_lost(self, *, push: bool) -> None:
        if not push:
            self.current = False

    def resync(self) -> None:
        """RESYNC_REQUIRED: start from cursor 0; the old rows remain until the last page."""
        self.cursor, self.complete, self.asked, self.current = 0, False, False, False

    def reload(self) -> None:
        """Restart the process over its database."""
        self.current = self.whole = self.asked = False

    def wipe(self) -> None:
        self._known, self.outbox, self.doubt, self._walk = {}, [], [], None
        self.cursor, self.complete, self.own = 0, False, 0
        self.reload()

    def backup(self) -> Any:
        state = (self._known, self.outbox, self.doubt, self._walk, self.cursor, self.complete, self.own)
        return copy.deepcopy(state)

    def restore(self, kept: Any) -> None:
        state = copy.deepcopy(kept)
        self._known, self.outbox, self.doubt, self._walk, self.cursor, self.complete, self.own = state
        self.reload()


def _fold(known: list[Delta], delta: Delta) -> None:
    """Add a delta to those of its row; deltas that a DELETE overrides are dropped."""
    known.append(delta)
    dead = max((stamp(each) for each in known if each["op"] == "DELETE"), default=NEVER)
    known[:] = [each for each in known if stamp(each) > dead or (each["op"] == "DELETE" and stamp(each) == dead)]


def _values(delta: Delta) -> Values:
    return {cell["column"]: cell["value"] for cell in delta["columns"]}


AnyClient = StockClient | NamedClient
