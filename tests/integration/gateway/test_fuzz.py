"""Any request of a client gets a reason, and never an internal error."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.gateway_support import delta

SCHEMA = {
    "table": "todos",
    "columns": [{"name": "title", "type": "string", "references": "a.b"}],
    "primaryKey": ["title"],
}
RULES = {
    "version": 1,
    "buckets": [{"name": "b", "tables": ["t"], "filters": [{"column": "c", "op": "eq", "value": "v"}]}],
}
PUSH = {"clientId": "client-1", "deltas": [delta("t1", {"n": 1, "deep": {"a": [1, "x", None]}})], "lastSeenHlc": "0"}
PULL = {"clientId": "client-1", "sinceHlc": "0", "maxDeltas": 10, "source": None}
GOOD = {
    "/sync/{gw}/push": PUSH,
    "/sync/{gw}/pull": PULL,
    "/admin/schema/{gw}": SCHEMA,
    "/admin/sync-rules/{gw}": RULES,
}
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=6)
    | st.sampled_from(["jwt:", "jwt:sub", "\ud800", "\x00", "9" * 400, "1e999", "18446744073709551616"])
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for name, child in children for place in places(child, (*at, name)))]


def replaced(value: Any, at: tuple[Any, ...], other: Any) -> Any:
    if not at:
        return other
    changed = copy.deepcopy(value)
    holder = changed
    for name in at[:-1]:
        holder = holder[name]
    holder[at[-1]] = other
    return changed


@st.composite
def near_misses(draw) -> tuple[str, bytes]:
    """A valid body with one or two replaced parts, sometimes with damaged bytes."""
    path = draw(st.sampled_from(sorted(GOOD)))
    body = GOOD[path]
    for _ in range(draw(st.integers(1, 2))):
        body = replaced(body, draw(st.sampled_from(places(body))), draw(VALUES))
    text = bytearray(json.dumps(body).encode())
    if draw(st.integers(0, 4)) == 0 and text:
        text[draw(st.integers(0, len(text) - 1))] = draw(st.integers(0, 255))
    return path, bytes(text)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(near_misses())
def test_a_nearly_valid_body_never_causes_an_internal_error(served, case):
    path, body = case
    client = served.client()
    caller = client.admin() if path.startswith("/admin") else client
    answer = caller.call("POST", path, data=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 403, 404, 409, 422), (body, answer.text)
    assert served.client("reader", client.gateway).pull().status_code == 200


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["since", "sinceHlc", "limit", "maxDeltas", "clientId", "source", "else"]),
        st.text(max_size=8) | st.integers(-5, 2**65).map(str),
        max_size=3,
    )
)
def test_no_query_causes_an_internal_error(served, query):
    answer = served.client().call("GET", "/sync/{gw}/pull", params=query)
    assert answer.status_code in (200, 400, 403, 404), (query, answer.text)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.sampled_from(["push", "pull"]))
def test_no_protobuf_causes_an_internal_error(served, body, verb):
    headers = {"Content-Type": "application/x-protobuf"}
    answer = served.client().call("POST", "/sync/{gw}/" + verb, data=body, headers=headers)
    assert answer.status_code in (200, 400, 403, 404), (body, answer.text)
