"""`/docs`: Swagger UI from the gateway's own files, over its own document."""

from __future__ import annotations

import re

import pytest
import requests
from playwright.sync_api import expect

from tests.integration.gateway.operations import OPERATIONS
from tests.integration.gateway_support import DEADLINE

FILES = ("swagger-ui.css", "swagger-ui-bundle.js", "start.js")


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_the_page_and_its_files_come_from_the_gateway_under_a_strict_policy(served, prefix):
    page = requests.get(f"{served.url}{prefix}/docs", timeout=DEADLINE)
    linked = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert linked == ["data:,", *(f"docs/{name}" for name in FILES)]
    answers = [page, *(requests.get(f"{served.url}{prefix}/docs/{name}", timeout=DEADLINE) for name in FILES)]
    for answer in answers:
        assert answer.status_code == 200
        directives = dict(one.strip().split(" ", 1) for one in answer.headers["content-security-policy"].split(";"))
        assert directives == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "connect-src": "'self'",
            "img-src": "data:",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
    types = [answer.headers["content-type"].split(";")[0] for answer in answers]
    assert types == ["text/html", "text/css", "text/javascript", "text/javascript"]


@pytest.mark.parametrize("name", ["index.html", "redoc.standalone.js", "favicon.png", "%2e%2e%2fapp.py", "app.py"])
def test_files_outside_the_documentation_are_not_found(served, name):
    request = requests.Request("GET", served.url).prepare()
    request.url = f"{served.url}/docs/{name}"
    with requests.Session() as session:
        assert session.send(request, timeout=DEADLINE).json()["code"] == "NOT_FOUND"


def test_a_file_is_compressed_if_the_client_accepts_gzip(served):
    url = f"{served.url}/docs/swagger-ui-bundle.js"
    packed = requests.get(url, timeout=DEADLINE, headers={"Accept-Encoding": "gzip"})
    plain = requests.get(url, timeout=DEADLINE, headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in packed.headers["vary"]
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_browser_shows_every_route_and_calls_the_gateway(page, served, prefix):
    page.goto(f"{served.url}{prefix}/docs")
    expect(page.locator(".opblock")).to_have_count(len(OPERATIONS))
    health = page.locator(".opblock", has=page.locator('[data-path="/health"]'))
    health.locator(".opblock-summary").click()
    health.get_by_role("button", name="Try it out").click()
    health.get_by_role("button", name="Execute").click()
    expect(health.locator(".live-responses-table .response .response-col_status")).to_contain_text("200")


def test_a_link_cannot_lead_the_page_to_another_document(page, served):
    elsewhere = "http://elsewhere.test/openapi.json"
    page.goto(f"{served.url}/docs?url={elsewhere}&configUrl={elsewhere}&urls.primaryName={elsewhere}")
    expect(page.locator(".title")).to_contain_text("LakeSync gateway")
    expect(page.locator(".opblock")).to_have_count(len(OPERATIONS))
