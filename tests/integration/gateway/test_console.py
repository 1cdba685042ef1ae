"""The operators' console in a browser: which clients are behind, and why a client lacks a row."""

from __future__ import annotations

import pytest
import requests
from playwright.sync_api import expect
from typer.testing import CliRunner

from lakesync.auth import configured_issuers
from lakesync.cli.app import app
from lakesync.cli.exit_codes import ExitCode
from lakesync.config import load
from lakesync.flush import MemoryFlushQueue
from lakesync.testing.servers.oidc import serve_oidc
from tests.integration.gateway.openapi_support import set_a_job_aside
from tests.integration.gateway_support import DEADLINE, SECRET, delta

RULES = {
    "version": 1,
    "buckets": [
        {"name": "team", "tables": ["todos"], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}
    ],
}
TEAMS = {"alice": "red", "bob": "red", "carol": "blue"}


@pytest.fixture(scope="module")
def world(serve):
    """A gateway whose rules show a row to two of three clients, one of which has not pulled since then."""
    served = serve()
    admin = served.client().admin()
    assert admin.call("POST", "/admin/sync-rules/{gw}", json=RULES).ok
    clients = {name: served.client(name, admin.gateway, team=team) for name, team in TEAMS.items()}
    clients["bob"].pull()
    clients["alice"].push(delta("<b>t1</b>", {"title": "Buy milk", "team": "red"}, client="alice"))
    clients["alice"].pull()
    clients["carol"].pull()
    return served, admin


def signed_in(world):
    """The console's address, as the command prints it."""
    served, admin = world
    result = CliRunner().invoke(
        app, ["console", "--url", served.url, "-g", admin.gateway], env={"LAKESYNC_JWT_SECRET": SECRET}
    )
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_an_operator_sees_which_clients_lack_a_row_and_why(page, world):
    page.goto(signed_in(world))
    assert "token" not in page.url
    expect(page.get_by_role("status").first).to_have_text("ready")
    expect(page.locator("#tiles")).to_contain_text("1 delta")
    page.get_by_label("Table", exact=True).fill("todos")
    page.get_by_label("Table", exact=True).dispatch_event("change")
    expect(page.locator("#rows option")).to_have_attribute("value", "<b>t1</b>")
    page.get_by_label("Row", exact=True).fill("<b>t1</b>")
    page.get_by_role("button", name="Explain").click()
    lines = page.locator("#because tbody tr")
    expect(lines).to_have_count(len(TEAMS))
    verdicts = {line.locator("td").nth(0).inner_text(): line.locator("td").nth(1).inner_text() for line in lines.all()}
    assert verdicts == {"alice": "delivered", "bob": "waiting", "carol": "hidden"}
    expect(lines.filter(has_text="carol")).to_contain_text("bucket team: team is red, not eq blue (jwt:team)")
    lines.get_by_role("button", name="carol").click()
    expect(page.locator("#because h3")).to_contain_text("<b>t1</b>")
    expect(page.locator("#because tbody").first).to_contain_text("team eq jwt:team")
    expect(page.locator("#because tbody").first).to_contain_text("✗ does not hold")


def test_the_console_shows_the_error_of_an_invalid_request(page, world):
    page.goto(signed_in(world))
    for name, value in (("Table", "todos"), ("Row", "t1"), ("Client", "carol"), ("With other claims", "{")):
        page.get_by_label(name, exact=True).fill(value)
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("#because")).to_contain_text("claims must be a JSON object")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Admin token").fill("no token")
    expect(page.locator("#because")).to_be_empty()
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("Name the gateway: the token does not.")
    page.get_by_label("Gateway").fill(world[1].gateway)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("token")
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_the_console_reports_a_request_without_an_answer(page, world, monkeypatch):
    served, admin = world
    queue = MemoryFlushQueue()
    monkeypatch.setattr(type(served.engine), "queue", queue)
    set_a_job_aside(queue, admin.gateway)
    page.route("**/admin/dead-letters/*/*", lambda route: route.abort())  # a loading page may still send requests
    page.goto(signed_in(world))
    retry = page.locator("#aside").get_by_role("button", name="Retry")
    retry.click()
    expect(page.get_by_role("alert")).to_have_text("The gateway does not answer.")
    page.unroute("**/admin/dead-letters/*/*")
    retry.click()
    expect(page.locator("#aside")).to_contain_text("Nothing")
    expect(page.get_by_role("alert")).to_be_hidden()
    assert len(queue.pending(admin.gateway)) == 1


@pytest.mark.parametrize(("scope", "warned"), [("any", True), ("visible", False), ("rules", False)])
def test_the_console_warns_of_a_write_scope_by_which_writers_can_read(page, world, scope, warned):
    _, admin = world
    assert admin.call("POST", "/admin/settings/{gw}", json={"writeScope": scope}).ok
    page.goto(signed_in(world))
    shown = page.locator("#rules p")
    expect(shown).to_contain_text("move any row into its own sight" if warned else f"Write scope: {scope}")
    expect(shown).to_have_class("bad" if warned else "")


def test_the_page_is_public_and_contains_no_data(world):
    served, _ = world
    for path, media in (
        ("/console", "text/html"),
        ("/v1/console", "text/html"),
        ("/console/main.js", "text/javascript"),
    ):
        answer = requests.get(served.url + path, timeout=DEADLINE)
        assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, media)
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    for path in ("/console/../route.py", "/console/%2e%2e%2froute.py", "/console/route.py", "/console/index.html"):
        request = requests.Request("GET", served.url + path).prepare()
        request.url = served.url + path
        with requests.Session() as session:
            assert session.send(request, timeout=DEADLINE).json()["code"] == "NOT_FOUND"


def test_the_console_command_reports_that_no_gateway_runs():
    result = CliRunner().invoke(
        app, ["console", "--url", "http://127.0.0.1:9", "-g", "shop"], env={"LAKESYNC_TOKEN": ""}
    )
    assert result.exit_code == ExitCode.UNREACHABLE


def test_an_admin_of_a_login_provider_signs_in_and_a_client_does_not(page, serve, monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    with serve_oidc("keycloak") as provider:
        section = {"issuer": provider.issuer, "audience": "lakesync", "role_claim": "realm_access.roles"}
        issuers = configured_issuers(load({"gateway": {"issuers": [section]}}))
        served = serve(issuers=issuers, sole_gateway="gw")
        for email, roles in (("boss@example.com", ["admin"]), ("alice@example.com", [])):
            token = provider.token(provider.add_user(email, roles=roles))
            environment = {"LAKESYNC_TOKEN": token, "LAKESYNC_CONFIG": ""}
            words = ["console", "--url", served.url, "-g", "gw"]
            ended = CliRunner().invoke(app, words, env=environment)
            assert ended.exit_code == (ExitCode.OK if roles else ExitCode.AUTH), ended.output
            page.goto("about:blank")
            page.goto(f"{served.url}/console#token={token}&gateway=gw")
            if not roles:
                expect(page.get_by_role("alert")).to_contain_text("this needs a token with role 'admin'")
                continue
            expect(page.get_by_role("status").first).to_have_text("ready")
            page.goto("about:blank")
            page.goto(ended.stdout.strip())
            expect(page.get_by_role("status").first).to_have_text("ready")
