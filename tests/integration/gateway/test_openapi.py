"""The OpenAPI document is correct: requests that it allows succeed, others are rejected, and answers match it.

A longer search: `pytest tests/integration/gateway/test_openapi.py --hypothesis-profile soak`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from jsonschema import Draft202012Validator
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.openapi_schemas import JSON
from lakesync.flush import MemoryFlushQueue, Outlet
from tests.integration.gateway.openapi_support import consistent, publish_checkpoint, set_a_job_aside
from tests.integration.gateway.operations import DESCRIPTION, OPERATIONS, Operation
from tests.integration.gateway.test_fuzz import GOOD, places, replaced
from tests.integration.gateway_support import SERVICE, Client, delta, sign

load_all_checks()

CONFORMS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=settings().max_examples // 8)
GATEWAY = "described"
CRM = {"name": "crm", "type": "postgres", "postgres": {"connectionString": "postgresql://crm"}}
QUEUE = MemoryFlushQueue()
UNREACHED: frozenset[str] = frozenset()
"""Operations for which no generated request can succeed, as `METHOD /path`."""
HOSTILE = (None, "null", "", "5", -1, 1.5, True, [], {}, "x" * 600)
DESCRIBED = schemathesis.openapi.from_dict(DESCRIPTION)
DESCRIBED.config.generation.allow_extra_parameters = False  # an unknown parameter is ignored
DESCRIBED.config.generation.with_security_parameters = False  # every request has a valid token
DESCRIBED.config.checks.negative_data_rejection.expected_statuses.append("413")


@pytest.fixture(scope="module")
def seeded(served, tmp_path_factory) -> Client:
    """A gateway with the data that the operations need."""
    client = served.client(gateway=GATEWAY)
    admin = client.admin()
    assert client.push(*(delta(f"t{n}", {"title": f"row {n}", "n": n}) for n in range(30))).status_code == 200
    todos = {"table": "todos", "columns": [{"name": "title", "type": "string"}, {"name": "n", "type": "number"}]}
    assert admin.call("POST", "/admin/schema/{gw}", json=todos).status_code == 200
    rules = {"version": 1, "buckets": [{"name": "all", "tables": [], "filters": []}]}
    assert admin.call("POST", "/admin/sync-rules/{gw}", json=rules).status_code == 200
    publish_checkpoint(served.engine.store, GATEWAY, tmp_path_factory.mktemp("frames"))
    served.engine._shared = served.engine._shared._replace(outlet=Outlet(None, queue=QUEUE))
    return client


def token(operation: Operation, case: schemathesis.Case) -> str:
    """A valid token of the client that the request names."""
    if operation.access == "service":
        return SERVICE
    body = case.body if isinstance(case.body, dict) else {}
    named = (case.query or {}).get("clientId") or body.get("clientId")
    sub = named if isinstance(named, str) and named else f"new-{case.id}"
    try:
        return sign(sub, GATEWAY, role="admin" if operation.access == "admin" else "client")
    except UnicodeEncodeError:
        return sign("client-1", GATEWAY, role="admin")


def ask(client: Client, operation: Operation, case: schemathesis.Case, checks: list[Any]) -> int:
    headers = {"Authorization": f"Bearer {token(operation, case)}"}
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and 0 < wait <= 3600:
        case.query["wait"] = 0.01  # no pipeline flushes here
    if operation.method == "DELETE":  # the earlier request may have deleted it
        client.admin().call("POST", "/admin/connectors/{gw}", json=CRM)
    if "dead-letters" in operation.path:
        set_a_job_aside(QUEUE, GATEWAY)
    return case.call_and_validate(base_url=client.url, headers=headers, checks=checks).status_code


def named(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def cases(operation: Operation, mode: GenerationMode, **fixed: Any):
    place = {"path_parameters": {"gateway": GATEWAY}} if "{gateway}" in operation.path else {}
    media = {"media_type": JSON} if operation.has_body else {}
    described = DESCRIBED[operation.path][operation.method]
    return described.as_strategy(generation_mode=mode, **(place | media | fixed))


def examples(operation: Operation) -> dict[str, Any]:
    """The document's own examples of parameters, if it has any."""
    found: dict[str, dict[str, Any]] = {"query": {}, "path": {}}
    for parameter in operation.parameters:
        for example in parameter.get("examples", {}).values():
            found[parameter["in"]][parameter["name"]] = example["value"]
    path = found["path"] | ({"gateway": GATEWAY} if "{gateway}" in operation.path else {})
    return {"query": found["query"] or None, "path_parameters": path or None}


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
def test_requests_that_the_document_allows_get_documented_answers(seeded, operation):
    statuses: Counter[int] = Counter()
    checks = CONFORMS if operation.access == "service" else [*CONFORMS, positive_data_acceptance]

    @SETTINGS
    @given(
        cases(operation, GenerationMode.POSITIVE)
        | cases(operation, GenerationMode.POSITIVE, **{k: v for k, v in examples(operation).items() if v})
    )
    def try_it(case: schemathesis.Case) -> None:
        case.body = consistent(case.body)
        statuses[ask(seeded, operation, case, checks)] += 1

    try_it()
    if named(operation) not in UNREACHED:
        assert any(200 <= status < 300 for status in statuses), f"no request succeeded: {statuses}"


def test_at_least_nine_of_ten_operations_succeed_when_fuzzed():
    assert len(UNREACHED) <= len(OPERATIONS) / 10
    assert {named(operation) for operation in OPERATIONS} >= UNREACHED


def is_sent_as_drawn(case: schemathesis.Case) -> bool:
    """Whether the URL has the drawn value: it omits null, and an object or a nested list."""
    url = requests.Request("GET", "http://host", params=case.as_transport_kwargs()["params"]).prepare().url
    sent = parse_qs(urlsplit(url).query, keep_blank_values=True)
    for name, value in (case.query or {}).items():
        drawn = len(value) if isinstance(value, list) else 1
        if isinstance(value, dict) or (isinstance(value, list) and drawn < 2) or len(sent.get(name, ())) != drawn:
            return False
    return True


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each.parameters or each.has_body], ids=named)
def test_requests_that_the_document_forbids_are_rejected(seeded, operation):
    @SETTINGS
    @given(cases(operation, GenerationMode.NEGATIVE))
    def try_it(case: schemathesis.Case) -> None:
        assume(is_sent_as_drawn(case))
        ask(seeded, operation, case, [*CONFORMS, negative_data_rejection])

    try_it()


@pytest.mark.parametrize("path", [*GOOD, "/admin/connectors/{gw}", "/admin/settings/{gw}"])
def test_a_body_is_rejected_for_each_part_that_the_document_forbids(seeded, path):
    """Replace each part of a body, because random search finds some cases rarely, such as null accepted as a number."""
    good = {"/admin/connectors/{gw}": CRM, "/admin/settings/{gw}": {"writeScope": "any"}} | GOOD
    content = DESCRIPTION["paths"][path.replace("{gw}", "{gateway}")]["post"]["requestBody"]["content"]
    form = Draft202012Validator({**content[JSON]["schema"], "components": DESCRIPTION["components"]})
    caller = seeded.admin() if path.startswith("/admin") else seeded
    assert form.is_valid(good[path])
    forbidden = [
        body
        for body in (replaced(good[path], place, other) for place in places(good[path]) for other in HOSTILE)
        if not form.is_valid(body)
    ]
    assert forbidden
    for body in forbidden:
        answer = caller.call("POST", path, json=body)
        assert answer.status_code in (400, 403, 422), (body, answer.text)  # 403: another clientId than in the token
