"""A client behind a proxy that rejects large requests, as many do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from lakesync.client import open_client
from tests.integration.gateway_support import Served, sign

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}
MOST = 5000
"""The largest request that is forwarded, in bytes."""


@pytest.fixture
def narrow(served: Served) -> Iterator[str]:
    """Forward small requests to the gateway, and answer others as nginx does; yield the URL."""

    class Passage(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = 413, b"<html><h1>413 Request Entity Too Large</h1></html>"
            if len(body) <= MOST:
                headers = {name: self.headers[name] for name in ("Authorization", "Content-Type", "X-LakeSync-Client")}
                response = requests.request(
                    self.command, served.url + self.path, data=body, headers=headers, timeout=30
                )
                status, answer = response.status_code, response.content
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = pass_on  # noqa: N815 as the library calls them

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Passage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_push_too_large_for_a_proxy_is_split_and_only_a_large_edit_is_refused(
    served: Served, narrow, tmp_path
) -> None:
    gateway = served.client().gateway
    given = {"url": narrow, "gateway": gateway, "schemas": [TODOS]}
    with (
        open_client(tmp_path / "alice.db", token=sign("alice", gateway), **given) as alice,
        open_client(tmp_path / "bob.db", token=sign("bob", gateway), **given) as bob,
    ):
        for number in range(30):
            alice["todos"].insert({"title": "x" * 500}, row_id=f"t{number:02}")
        alice["todos"].insert({"title": "x" * MOST}, row_id="large")
        alice.sync()
        assert [(edit.delta.row_id, edit.status) for edit in alice.pending()] == [("large", "refused")]
        assert "413" in alice.pending()[0].message
        bob.sync()
        assert len(bob["todos"]) == 30
