"""Every route under every role, and the table of them in docs/security.md."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests
from fastapi.routing import iter_route_contexts

from gateway.server import build_routes
from gateway.settings import PREFIXES
from tests.integration.gateway.operations import OPERATIONS
from tests.integration.gateway_support import DEADLINE, SERVICE, filled, sign

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
METRICS = "the token that Prometheus shows here"
ROLES = {
    "anonymous": None,
    "client": sign("alice", "gw"),
    "admin": sign("root", "gw", role="admin"),
    "client of another gateway": sign("alice", "other"),
    "admin of another gateway": sign("root", "other", role="admin"),
    "pipeline": SERVICE,
    "Prometheus": METRICS,
}
LET_IN = {
    "open": set(ROLES),
    "client": {"client", "admin"},
    "admin": {"admin"},
    "service": {"pipeline"},
    "metrics": {"Prometheus"},
}
WORDS = {
    "open": "anyone",
    "client": "client, admin",
    "admin": "admin",
    "service": "the pipeline, from loopback",
    "metrics": "anyone, or Prometheus where `metrics_token` is set",
}


def routes():
    """Return the method, path, purpose and admitted roles of every route."""
    for each in OPERATIONS:
        access = "metrics" if each.path == "/metrics" else each.access
        yield each.method, each.path, each.summary, access
    yield "GET", "/sync/{gateway}/ws", "Follow a gateway over a WebSocket", "client"
    yield "GET", "/docs", "Swagger UI over `/openapi.json`", "open"
    yield "GET", "/docs/{file}", "A file of Swagger UI's page", "open"
    yield "GET", "/console", "The console's page, which asks the admin routes", "open"
    yield "GET", "/console/{file}", "A file of the console's page", "open"


ROUTES = list(routes())


@pytest.fixture(scope="module")
def guarded(serve):
    return serve(metrics_token=METRICS)


def table():
    """Return the Markdown table of routes and roles for docs/security.md."""
    lines = [f"| `{method} {path}` | {summary} | {WORDS[access]} |" for method, path, summary, access in ROUTES]
    return "\n".join(["| route | what it does | who gets in |", "|---|---|---|", *lines])


def test_the_security_page_contains_the_table_of_roles():
    assert table() in PAGE, f"put this into docs/security.md:\n\n{table()}"


def test_the_table_covers_every_route():
    there = {route.path for route in iter_route_contexts(build_routes().routes)}
    nowhere = "/{path:path}"  # answers every other WebSocket with 404
    assert there - {nowhere} == {prefix + path for prefix in PREFIXES for _, path, _, _ in ROUTES}


@pytest.mark.parametrize(("method", "path", "access"), [(each[0], each[1], each[3]) for each in ROUTES])
def test_each_role_is_admitted_as_the_table_documents(guarded, method, path, access):
    filled_path = filled(path, gateway="gw", file="console.css", method="gateways")
    with requests.Session() as session:
        statuses = {
            (prefix, role): _status(session, method, guarded.url + prefix + filled_path, token)
            for prefix in PREFIXES
            for role, token in ROLES.items()
        }
    admitted = {each for each, status in statuses.items() if status not in (401, 403)}
    assert admitted == {(prefix, role) for prefix in PREFIXES for role in LET_IN[access]}, statuses


def _status(session, method, url, token):
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if url.endswith("/ws"):
        headers |= {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        headers["Sec-WebSocket-Key"] = "bGFrZXN5bmMgaXMgc2FmZQ=="
    with session.request(method, url, headers=headers, timeout=DEADLINE, stream=True) as answer:
        return answer.status_code


def test_a_rejection_is_the_same_for_every_gateway(guarded):
    """A tenant must not learn which gateways exist."""
    admin = {"Authorization": f"Bearer {ROLES['admin of another gateway']}"}
    found = set()
    for gateway in ("gw", "never-made"):
        answer = requests.get(f"{guarded.url}/admin/metrics/{gateway}", headers=admin, timeout=DEADLINE)
        found.add((answer.status_code, answer.json()["error"].replace(gateway, "…")))
    assert len(found) == 1
