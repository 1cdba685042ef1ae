"""The page on the HTTP API names every route, error code and metric."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gateway.errors import STATUSES, status_of
from gateway.metrics import Metrics
from gateway.openapi_schemas import OBJECT_KEYWORDS, PROPERTY_KEYWORDS
from gateway.settings import PREFIXES
from tests.integration.gateway.operations import DESCRIPTION, OPERATIONS

PAGE = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_the_page_names_every_route(operation):
    assert f"`{operation.method} {operation.path}`" in PAGE


def test_the_page_names_exactly_the_existing_routes():
    known = {(each.method, each.path) for each in OPERATIONS}
    named = set(re.findall(r"`(GET|POST|PUT|DELETE) (/[^` ]*)`", PAGE))
    assert named == known


@pytest.mark.parametrize("kind", STATUSES)
def test_the_page_names_every_error_code_with_its_status(kind):
    rows = [row for row in PAGE.splitlines() if row.startswith("|") and f"`{kind.code}`" in row]
    assert any(f"| {status_of(kind)} |" in row for row in rows)


def test_the_page_names_every_metric():
    names = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in Metrics(list, dict, 1).registry.collect()
    }
    assert len(names) > 10
    assert names == set(re.findall(r"^\| `(lakesync_\w+)` \|", PAGE, re.MULTILINE))


@pytest.mark.parametrize(("method", "path"), [("post", "push"), ("get", "pull"), ("post", "pull")])
def test_the_openapi_document_has_the_client_header_of_pushes_and_pulls(method, path):
    parameters = DESCRIPTION["paths"][f"/sync/{{gateway}}/{path}"][method]["parameters"]
    assert "X-LakeSync-Client" in [each["name"] for each in parameters]


def test_the_page_names_both_prefixes():
    assert PREFIXES == ("", "/v1")
    assert "`/v1`" in PAGE


def test_every_type_with_extra_keywords_is_in_the_openapi_document():
    titles = set(re.findall(r'"title": "(\w+)"', json.dumps(DESCRIPTION)))
    assert titles >= PROPERTY_KEYWORDS.keys() | OBJECT_KEYWORDS.keys()
