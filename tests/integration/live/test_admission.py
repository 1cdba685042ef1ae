"""Which clients may open a WebSocket, and the error that the others get."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, suppress

import pytest
import requests
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.errors import CLOSE_REJECTED
from tests.integration.gateway_support import DEADLINE, Client, delta, sign, until
from tests.integration.live.live_support import Live


def refused(client, **options):
    """The status and body of a rejected handshake."""
    with pytest.raises(InvalidStatus) as raised:
        Live(client, **options)
    answer = raised.value.response
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    body = json.loads(answer.body)
    assert body["requestId"] == answer.headers["x-request-id"]
    return answer.status_code, body


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_websocket_token_may_be_in_the_query(served, prefix):
    client = served.client()
    with Live(client, prefix=prefix, query=f"?token={client.token}", additional_headers={}) as live:
        assert live.pull().deltas == ()


def test_a_handshake_may_have_a_length_of_0(served):
    """Some devices send this header."""
    client = served.client()
    headers = {"Authorization": f"Bearer {client.token}", "Content-Length": "0"}
    with Live(client, additional_headers=headers) as live:
        assert live.pull().deltas == ()


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ("", {}, 401, "AUTH_ERROR"),
        ("?token=", {}, 401, "AUTH_ERROR"),
        ("?token=nonsense", {}, 401, "AUTH_ERROR"),
        (f"?token={sign(gw='another', seconds=86_400)}", {}, 403, "FORBIDDEN"),
        (f"?token={sign(seconds=-1)}", {}, 401, "AUTH_ERROR"),
        (f"?token={sign(secret='of somebody else, with its proper length')}", {}, 401, "AUTH_ERROR"),
        ("", {"Authorization": "Basic eDp5"}, 401, "AUTH_ERROR"),
    ],
)
def test_a_rejected_websocket_handshake_has_the_http_error(served, query, headers, status, code):
    found, body = refused(served.client(), query=query, additional_headers=headers)
    assert (found, body["code"]) == (status, code)


def test_a_gateway_id_of_another_form_is_rejected(served):
    client = Client(served.url, "not%20an%20id")
    assert refused(client)[0] == 400


def test_a_handshake_on_another_path_is_rejected_with_the_reason(served):
    status, body = refused(served.client("gw/nothing"), query="/")
    assert (status, body["code"]) == (404, "NOT_FOUND")
    assert "/sync/{gateway}/ws" in body["error"]


def test_an_unknown_gateway_is_not_found_without_auto_create(serve):
    closed = serve(auto_create=False)
    status, body = refused(closed.client())
    assert (status, body["code"]) == (404, "NOT_FOUND")


def test_only_pages_of_allowed_origins_may_connect(serve):
    narrow = serve(allowed_origins=("https://app.example",))
    client = narrow.client()
    assert refused(client, origin="https://evil.example")[1]["code"] == "FORBIDDEN"
    for origin in ("https://app.example", None):
        with Live(client, origin=origin) as live:
            assert live.pull().deltas == ()


def test_a_plain_request_to_the_websocket_path_is_rejected_with_the_reason(served):
    client = served.client()
    for prefix in ("", "/v1"):
        answer = client.call("GET", prefix + "/sync/{gw}/ws")
        assert answer.status_code == 400
        assert "ws://" in answer.json()["error"]


def test_without_a_secret_messages_name_their_client(serve):
    unguarded = serve(secrets=())
    alice, bob = unguarded.client("alice"), unguarded.client("bob")
    bob.gateway = alice.gateway
    with Live(alice, additional_headers={}) as writer, Live(bob, additional_headers={}) as reader:
        reader.pull()
        writer.push(delta("t1", {"n": 1}, client="alice"))
        assert [each.row_id for each in reader.broadcast().deltas] == ["t1"]


def connected_for(client, seconds):
    """A connection that has pulled with a token of this lifetime; None if the token expired before."""
    brief = sign(client.client_id, client.gateway, seconds=seconds)
    with ExitStack() as failed, suppress(InvalidStatus, ConnectionClosed):
        live = failed.enter_context(Live(client, additional_headers={"Authorization": f"Bearer {brief}"}))
        assert live.pull().deltas == ()
        failed.pop_all()
        return live
    return None


def test_a_connection_ends_with_its_token(served):
    client = served.client()
    begun = time.time()
    lifetimes = (4, 12, 36)  # a busy machine may need longer than the first lifetime
    with next(live for seconds in lifetimes if (live := connected_for(client, seconds))) as live:
        code, reason = live.closed()
    assert (code, reason.partition(":")[0]) == (CLOSE_REJECTED, "AUTH_ERROR")
    assert time.time() >= begun + 1


@pytest.mark.parametrize("share", ["gateway", "client"])
def test_connections_of_one_tenant_or_client_are_limited(serve, share):
    small = serve(http_limits={f"websocket_connections_per_{share}": 2})
    client = small.client()
    held = [Live(client) for _ in range(2)]
    status, body = refused(client)
    assert (status, body["code"]) == (503, "BACKPRESSURE_ERROR")
    assert body["error"].startswith(f"{share} ")
    other = small.client() if share == "gateway" else Client(small.url, client.gateway, "somebody-else")
    held.append(Live(other))
    assert held[-1].pull().deltas == ()
    for live in held:
        live.socket.close()


def test_the_number_of_connections_is_limited_and_closed_ones_are_replaced(serve):
    small = serve(http_limits={"websocket_connections": 3})
    client = small.client()
    held = [Live(client) for _ in range(3)]
    status, body = refused(client)
    assert (status, body["code"]) == (503, "BACKPRESSURE_ERROR")
    assert "3 WebSocket connections" in body["error"]
    with pytest.raises(InvalidStatus) as raised:
        Live(client)
    assert int(raised.value.response.headers["retry-after"]) > 0
    held.pop().socket.close()

    def room():
        try:
            return Live(client)
        except InvalidStatus:
            return None

    held.append(until(room, "a place"))
    assert held[-1].pull().deltas == ()
    metrics = requests.get(small.url + "/metrics", timeout=DEADLINE).text
    assert "lakesync_websocket_connections 3.0" in metrics
    for live in held:
        live.socket.close()
