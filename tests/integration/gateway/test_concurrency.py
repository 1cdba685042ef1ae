"""The gateway serves other requests while worker threads read a large body or build a large response."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import requests

from gateway import server
from gateway.openapi_schemas import PROTOBUF
from gateway.routes import pages
from lakesync.wire import protobuf
from tests.integration.gateway_support import Served, delta
from tests.integration.live.live_support import Live

SOON = 20.0
LARGE = 40_000
"""A size in bytes above which the gateway does not read or write in the event loop."""
SCHEMA = {"table": "todos", "columns": [{"name": f"c{number}", "type": "string"} for number in range(1500)]}
RULES = {"version": 1, "buckets": [{"name": f"b{number}", "tables": ["todos"], "filters": []} for number in range(900)]}

Watch = Callable[[Any, str], list[bool]]


@pytest.fixture
def watch(served: Served, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Replace a function by one that first requests `/health`; return the list of whether that was answered."""

    def replace(owner: Any, name: str) -> list[bool]:
        answered: list[bool] = []
        function = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            if not isinstance(arguments[0], bytes) or len(arguments[0]) > LARGE:
                try:
                    answered.append(requests.get(f"{served.url}/health", timeout=SOON).ok)
                except requests.Timeout:
                    answered.append(False)
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)
        return answered

    return replace


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/admin/schema/{gw}", SCHEMA),
        ("/admin/sync-rules/{gw}", RULES),
        ("/admin/connectors/{gw}", SCHEMA),
        ("/admin/settings/{gw}", SCHEMA),
    ],
)
def test_others_are_answered_while_a_large_configuration_is_read(served, watch, path, body):
    answered = watch(msgspec.json, "decode")
    served.client().admin().call("POST", path, json=body)
    assert answered == [True]


@pytest.mark.parametrize(
    ("path", "body"), [("/admin/schema/{gw}", SCHEMA), ("/admin/sync-rules/{gw}", RULES)], ids=["schemas", "rules"]
)
def test_others_are_answered_while_a_large_configuration_is_written(served, watch, path, body):
    admin = served.client().admin()
    assert admin.call("POST", path, json=body).status_code == 200
    answered = watch(msgspec, "to_builtins")
    assert len(admin.call("GET", path).content) > LARGE
    assert answered == [True]


def test_others_are_answered_while_rows_are_written(served, watch):
    client = served.client()
    assert client.push(delta("t1", {"n": 1})).status_code == 200
    answered = watch(msgspec, "to_builtins")
    assert client.admin().call("GET", "/admin/rows/{gw}", params={"table": "todos"}).status_code == 200
    assert answered
    assert all(answered)


def test_others_are_answered_while_a_large_page_becomes_protobuf(served, watch):
    client = served.client()
    assert client.push(delta("t1", {"text": "x" * LARGE})).status_code == 200
    other = served.client("client-2", client.gateway)
    answered = watch(protobuf, "encode_response")
    page = other.call("GET", "/sync/{gw}/pull", params={"clientId": "client-2"}, headers={"Accept": PROTOBUF})
    assert len(protobuf.decode_response(page.content).deltas) == 1
    assert answered == [True]
    with Live(served.client("client-3", client.gateway)) as live:
        assert len(live.pull().deltas) == 1
        assert answered == [True] * 2
        assert client.push(delta("t2", {"text": "x" * LARGE})).status_code == 200
        assert len(live.broadcast().deltas) == 1
        assert all(answered[2:])


def test_others_are_answered_while_the_pages_are_made_for_the_first_time(served, watch):
    served_pages = [(server, "openapi_document", "/openapi.json"), (gzip, "compress", "/docs/swagger-ui-bundle.js")]
    pages._content.cache_clear()
    for owner, name, path in served_pages:
        answered = watch(owner, name)
        assert requests.get(served.url + path, timeout=60).ok
        assert answered == [True]
