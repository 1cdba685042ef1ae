"""One poisoned member of each kind, which must not affect the others: a tenant, a table, a destination and a connector.

The tenant's schema conflicts with a frozen table. A file of a state table is deleted, so that the table cannot be
merged. A destination has another user's table with the name of a LakeSync table. A connector's source refuses
connections; another connector polls a Jira site that changes.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lakesync.analysis.catalogue import LakeReader
from lakesync.analysis.scans import all_of, condition
from lakesync.config import load
from lakesync.model.hlc import wall_clock
from lakesync.testing.servers import serve
from lakesync.testing.servers.jira import JiraApi, JiraSite

if TYPE_CHECKING:
    from lakesync.config import Config
    from tests.pipeline_storm.system import System

FROZEN, WRECKED = "frozen", "wrecked"
"""The tables of the first and the second tenant that cannot be merged."""
SETTINGS = """
[tables.frozen]
contract = "freeze"

[connectors]
allowed_hosts = ["*", "127.0.0.1"]
"""
_COLUMN = {"name": "number", "type": "number"}
_ISSUES = "jira_issues"
_CONNECTOR = "desk"
_POLL_MS = 30_000
POISONED_GATEWAYS = 4
"""Number of gateways that `Poison` poisons, each in another way."""


def occupy(copy: Path, table: str) -> None:
    """Create another user's table with the name of a destination table."""
    with closing(sqlite3.connect(copy)) as db:
        db.execute(f"CREATE TABLE {table} (owner TEXT)")


class Poison:
    """Poisons members of a running system, and lists those that must be reported at the end."""

    def __init__(self, system: System, closing: ExitStack) -> None:
        """Register the tables that are poisoned later, and the connectors; `closing` stops the Jira site."""
        self._system = system
        self.frozen, self.wrecked, self.polled, self.refused = system.gateways[:POISONED_GATEWAYS]
        system.own_tables = {self.frozen: [FROZEN], self.wrecked: [WRECKED]}
        for gateway, tables in system.own_tables.items():
            system.register(gateway, tables[0], [_COLUMN])
        self._site = JiraSite(wall_clock)
        self._site.add_project("SUP")
        self._api = JiraApi(self._site)
        self._served = closing.enter_context(serve(self._api))
        for gateway, url in ((self.polled, self._served.url), (self.refused, "http://127.0.0.1:1")):
            system.call("POST", f"/admin/connectors/{gateway}", self._connector(url), gateway, "admin")
        self.issues = 0

    def _connector(self, url: str) -> dict[str, object]:
        account = {"domain": "storm", "baseUrl": url, "email": self._api.email, "apiToken": self._api.token}
        return {"name": _CONNECTOR, "type": "jira", "jira": account, "ingest": {"intervalMs": _POLL_MS}}

    def take_effect(self) -> None:
        """Poison the members once they are up to date."""
        self._system.register(self.frozen, FROZEN, [_COLUMN, {"name": "added", "type": "string"}])
        with LakeReader(self._config()) as lake:
            state = lake.state_table_of(self.wrecked, WRECKED)
            assert state is not None
            for path in state.inspect.files()["file_path"].to_pylist():
                Path(urlsplit(path).path).unlink()

    def is_poisoned(self, gateway: str, part: str, name: str) -> bool:
        """Whether a part cannot be up to date."""
        if (gateway, part) == (self.refused, "poll"):
            return True
        table = {self.frozen: FROZEN, self.wrecked: WRECKED}.get(gateway)
        return table is not None and (part, name) in {("table", table), ("checkpoint", "")}

    def add_issue(self) -> None:
        """Change the site that is polled."""
        self.issues += 1
        self._served.change_state(lambda: self._site.add_issue("SUP", f"issue {self.issues}"))

    def issues_are_in_the_lake(self) -> bool:
        """Whether the history has every issue of the site."""
        own = all_of(condition("gateway", "=", self.polled), condition("table_name", "=", _ISSUES))
        with LakeReader(self._config()) as lake:
            history = lake.deltas
            rows = history.scan(own, selected_fields=("row_id",)).to_arrow()["row_id"] if history is not None else []
        return len(set(map(str, rows))) == self.issues

    def unnamed(self) -> list[str]:
        """The poisoned members that the gateway's metrics report neither as behind nor as suspended."""
        found = []
        for gateway, table in ((self.frozen, FROZEN), (self.wrecked, WRECKED)):
            named = {(part["part"], part["name"]) for part in self._system.pipeline(gateway)["behind"]}
            wanted = (("table", table), ("checkpoint", ""))
            found += [f"{gateway} {' '.join(each)}".strip() for each in wanted if each not in named]
        if not any(part["part"] == "poll" for part in self._system.pipeline(self.refused)["behind"]):
            found.append(f"{self.refused} poll {_CONNECTOR}")
        asides = {each["name"] for each in self._system.pipeline(self.polled)["dead_letters"]}
        occupied = f"copy/copy!{self._system.tables[-1]}"
        return found if occupied in asides else [*found, occupied]

    def _config(self) -> Config:
        return load({"data_dir": self._system.data})
