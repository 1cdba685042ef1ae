"""Attacks from a web page in the operator's browser on the Dagster webserver that `lakesync up` starts."""

from __future__ import annotations

import sys

import pytest
import requests
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from lakesync.cli.up.process import Process, accepts, free_ports

MUTATION = {"query": "mutation { setNuxSeen }"}
QUERY = {"query": "{ version }"}
PROXY = "Ops.example.com"


class Pages:
    """A running webserver."""

    def __init__(self, port):
        self.own = f"127.0.0.1:{port}"
        self.port = port

    def call(self, method, path, **options):
        headers = {name: value for name, value in options.pop("headers", {}).items() if value is not None}
        return requests.request(method, f"http://{self.own}{path}", headers=headers, timeout=30, **options)

    def graphql(self, asked, **headers):
        return self.call("POST", "/graphql", json=asked, headers=headers)

    def live(self, origin):
        return connect(f"ws://{self.own}/graphql", origin=origin, subprotocols=["graphql-ws"])


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    (port,) = free_ports(1)
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    (home / "workspace.yaml").write_text("load_from: []\n")
    command = (sys.executable, "-m", "lakesync_dagster.webserver", "--port", str(port), "--allowed-host", PROXY)
    process = Process(
        "dagster",
        (*command, "--workspace", str(home / "workspace.yaml")),
        {"DAGSTER_HOME": str(home)},
        home / "webserver.log",
    )
    try:
        process.wait_ready(lambda: accepts(port), timeout=120)
        yield Pages(port)
    finally:
        process.stop(grace=10)


def test_requests_of_dagsters_own_pages_are_served(pages):
    origin = f"http://{pages.own}"
    assert pages.graphql(QUERY, Origin=origin).json()["data"]["version"]
    assert pages.graphql(MUTATION).json()["data"]["setNuxSeen"]
    assert pages.graphql(QUERY, Host=f"localhost:{pages.port}").ok
    assert pages.call("GET", "/graphql", headers={"Accept": "text/html"}).ok
    assert pages.call("GET", "/server_info").ok
    with pages.live(origin):
        pass
    with pages.live(None):
        pass


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_pages_are_served_under_the_configured_proxy_name_only(pages, scheme):
    assert pages.graphql(QUERY, Host="ops.example.com", Origin=f"{scheme}://ops.example.com").ok
    assert pages.graphql(QUERY, Host="ops.example.com", Origin=f"{scheme}://ops.example.com:1").status_code == 403
    assert pages.graphql(QUERY, Host="ops.example.com:1").status_code == 421


@pytest.mark.parametrize("asked", [MUTATION, QUERY])
def test_graphql_queries_by_get_are_rejected(pages, asked):
    assert pages.call("GET", "/graphql", params=asked).status_code == 405
    assert pages.call("HEAD", "/graphql", params=asked).status_code == 405
    page = pages.call("GET", "/graphql", params=asked, headers={"Accept": "text/html"})
    assert page.headers["Content-Type"].startswith("text/html")


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "text/plain; application/json", "application/graphql", None],
)
def test_content_types_that_a_form_can_send_are_rejected(pages, content_type):
    headers = {"Content-Type": content_type}
    assert pages.call("POST", "/graphql", params=MUTATION, data=b"{}", headers=headers).status_code == 415
    reported = pages.call("POST", "/report_asset_materialization/a", params={"data_version": "1"}, headers=headers)
    assert reported.status_code == 415


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://{own}"])
def test_a_page_of_another_origin_is_rejected(pages, origin):
    origin = origin.format(own=pages.own)
    assert pages.graphql(MUTATION, Origin=origin).status_code == 403
    assert pages.call("GET", "/server_info", headers={"Origin": origin}).status_code == 403
    with pytest.raises(InvalidStatus) as refused, pages.live(origin):
        pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "127.0.0.1"])
def test_a_name_that_was_rebound_to_loopback_is_rejected(pages, host):
    assert pages.graphql(MUTATION, Host=host.format(port=pages.port)).status_code == 421
