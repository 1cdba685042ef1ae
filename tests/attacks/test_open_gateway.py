"""Attacks from a web page in a developer's browser on a loopback gateway without authentication."""

from __future__ import annotations

import http.client

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.integration.gateway_support import DEADLINE, delta

ELSEWHERE = [
    "https://evil.example",
    "null",
    "http://localhost.evil.example",
    "http://[::1",
    "file://",
    "http://10.0.0.8",
]
CALLS = [
    ("GET", "/sync/gw/pull?since=0&clientId=victim"),
    ("POST", "/sync/gw/push"),
    ("GET", "/admin/rows/gw?table=todos"),
    ("POST", "/admin/sync-rules/gw"),
    ("POST", "/admin/flush/gw"),
]


@pytest.fixture(scope="module")
def unguarded(serve):
    return serve(secrets=())


def ask(served, method, path, **headers):
    """Return the status and the code of an answer; a header whose value is None is not sent."""
    place = served.url.removeprefix("http://")
    line = http.client.HTTPConnection(place, timeout=DEADLINE)
    given = {"Host": place, **{name.replace("_", "-"): value for name, value in headers.items()}}
    line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in given.items():
        if value is not None:
            line.putheader(name, value)
    line.putheader("Content-Length", "0")
    line.endheaders()
    answer = line.getresponse()
    said = answer.read()
    line.close()
    return answer.status, b"FORBIDDEN" in said


@pytest.mark.parametrize("origin", ELSEWHERE)
@pytest.mark.parametrize(("method", "path"), CALLS)
def test_a_page_of_another_site_is_rejected(unguarded, method, path, origin):
    assert ask(unguarded, method, path, Origin=origin) == (403, True)


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_requests_of_a_page_without_an_origin_are_rejected(unguarded, method, path):
    """An image or a link: the page cannot read the response, but a pull still moves the client's cursor."""
    assert ask(unguarded, method, path, Sec_Fetch_Site="cross-site") == (403, True)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.0.0.8", "127.0.0.1.evil.example", "user@evil"])
def test_a_name_that_was_rebound_to_loopback_is_rejected(unguarded, host):
    assert ask(unguarded, "GET", CALLS[0][1], Host=host) == (403, True)


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_a_page_of_another_site_opens_no_websocket(unguarded, origin):
    place = unguarded.url.replace("http", "ws", 1) + "/sync/gw/ws"
    with pytest.raises(InvalidStatus) as refused, connect(place, origin=origin):
        pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize("origin", [None, "http://localhost:5173", "http://127.0.0.1:3000", "https://app.localhost"])
def test_programs_and_pages_of_this_machine_are_served(unguarded, origin):
    assert ask(unguarded, "GET", CALLS[0][1], Origin=origin) == (200, False)
    assert ask(unguarded, "GET", CALLS[0][1], Origin=origin, Sec_Fetch_Site="same-site") == (200, False)


def test_a_page_of_an_allowed_origin_is_served(serve):
    named = serve(secrets=(), allowed_origins=("https://app.example",))
    assert ask(named, "GET", CALLS[0][1], Origin="https://app.example", Sec_Fetch_Site="cross-site") == (200, False)
    assert ask(named, "GET", CALLS[0][1], Origin="https://other.example") == (403, True)


def test_with_a_secret_the_token_decides(served):
    client = served.client()
    assert client.push(delta("r", {"title": "x"})).ok
    assert client.call("GET", "/sync/{gw}/pull", params={"since": "0"}, headers={"Origin": "https://evil.example"}).ok
