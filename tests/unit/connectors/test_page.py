"""The connector type of docs/connectors.md, copied unchanged from the page, against a small API."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakesync import HLC, make_action
from lakesync.connectors import ConnectorConfig, Connectors, ConnectorType, Secrets
from lakesync.connectors.host_policy import HostPolicy
from lakesync.model.errors import AuthError
from lakesync.testing.landing import MemoryLanding, RowChange, poll

PAGE = (Path(__file__).parents[3] / "docs" / "connectors.md").read_text()


@pytest.fixture
def connector() -> ConnectorType:
    """The type that the page defines."""
    (program,) = (each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "ConnectorType(" in each)
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 what the page shows is what is tested
    found: ConnectorType = names["CONNECTOR"]
    return found


@pytest.fixture
def desk() -> Iterator[SimpleNamespace]:
    """The API that the page describes; `tickets` has its tickets by id."""
    tickets: dict[str, dict[str, str]] = {}

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if self.headers["Authorization"] != "Bearer t0p":
                self.answer(401, {})
            elif path == "/tickets/ids":
                self.answer(200, list(tickets))
            elif path == "/tickets":
                since = int(query.partition("since=")[2] or 0)
                self.answer(200, {"tickets": list(tickets.values())[since:], "now": len(tickets)})
            else:
                self.answer(200, tickets[path.rpartition("/")[2]])

        def do_POST(self) -> None:
            wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            ticket_id = f"t{wanted['key'][:8]}"
            tickets[ticket_id] = {"id": ticket_id, "title": wanted["title"], "state": "open"}
            self.answer(200, {"id": ticket_id})

        def answer(self, status: int, body: object) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", tickets=tickets)
        server.shutdown()


def configured(desk: SimpleNamespace, token: str = "t0p") -> ConnectorConfig:
    return ConnectorConfig(
        "shop", "support", "desk", {"site": desk.url, "token": token}, {}, hosts=HostPolicy(("127.0.0.1",))
    )


def test_the_pages_type_polls_executes_and_finds_deletes(connector, desk):
    action = make_action("support", "open_ticket", {"title": "No light"}, client_id="alice", hlc=HLC().now())
    handler: Any = connector.make_handler(configured(desk))
    results = [handler.execute_action(action, None) for _ in range(2)]
    (ticket_id,) = desk.tickets
    assert results == [{"ticket": ticket_id}] * 2
    desk.tickets["t2"] = {"id": "t2", "title": "No water", "state": "closed"}
    source = connector.open_source(configured(desk))
    landing = MemoryLanding(source.tables)
    assert poll(source, landing).tables[0].error is None
    assert landing.rows["tickets"].keys() == {ticket_id, "t2"}
    del desk.tickets[ticket_id]
    assert poll(source, landing).tables[0].error is None
    assert landing.changes[-1] == ("tickets", RowChange("DELETE", ticket_id, {}))
    source.close()


def test_the_pages_type_reports_a_rejected_token(connector, desk):
    source = connector.open_source(configured(desk, "wrong"))
    assert isinstance(poll(source, MemoryLanding(source.tables)).tables[0].error, AuthError)
    source.close()


def test_the_pages_type_can_be_registered(connector):
    assert connector.descriptor.secrets == {"token"}
    assert connector.descriptor.urls == {"site"}
    settings = {"site": "https://desk.example.com", "token": "env:CONNECTOR_shop_DESK"}
    registered = {"name": "support", "type": "desk", "desk": settings, "ingest": {}}
    connectors = Connectors(Secrets(references=["env:CONNECTOR_{gateway}_*"]), [connector])
    assert connectors.seal("shop", registered).settings == settings
