"""Requests of the object store in S3."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from lakesync.adapters.object_store import s3
from lakesync.model.errors import AdapterError


def test_a_failing_request_is_sent_as_often_as_the_attempts_say(monkeypatch):
    monkeypatch.setattr(s3, "_ATTEMPTS", 1)
    requests = []

    class Failing(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        store = s3.S3Objects("b", endpoint=endpoint, region="us-east-1", access_key="k", secret_key="s")
        with pytest.raises(AdapterError, match="cannot be read"):
            store.get_object("key")
        store.close()
        server.shutdown()
    assert len(requests) == 1
