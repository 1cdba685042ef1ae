"""A tenant's admin registers connectors that call the server's own network."""

from __future__ import annotations

import gzip
from contextlib import closing, suppress
from ipaddress import ip_address

import msgspec
import pytest
from pydantic import SecretStr

from lakesync.cli.connection import GatewayConnection
from lakesync.cli.local import doctor_checks
from lakesync.client import HttpTransport
from lakesync.config import load
from lakesync.connectors import http_api
from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.http_api import HttpApi
from lakesync.connectors.registry import Connectors
from lakesync.connectors.secrets import Secrets
from lakesync.connectors.webhook import WebhookActions
from lakesync.model.action_handlers import ActionContext
from lakesync.model.errors import AdapterError, ConfigurationError, LakeSyncError, ValidationError
from lakesync.model.types import Action, SyncPull
from lakesync.staging.remote import RemoteStore
from lakesync.testing.servers import Response, serve
from sensors.alerts import Alerts, RunRecovered
from tests.attacks.rebinding import rebind

LOOPBACK = HostPolicy(("127.0.0.1",))
PRIVATE = [
    "http://127.0.0.1:8787/admin",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://0.0.0.0/",
    "http://10.0.0.8/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://100.64.0.1/",
    "http://224.0.0.1/",
    "http://[::1]/",
    "http://[::]/",
    "http://[fe80::1]/",
    "http://[fd00::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:169.254.169.254]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
]
MALFORMED = [
    "https://",
    "https:///path",
    "https://user:password@example.com/",
    "https://example.com@127.0.0.1/",
    "https://example.com:0/",
    "https://example.com:99999/",
    "https://example.com\\@127.0.0.1/",
    "https://exam ple.com/",
    "https://example.com/\r\nHost: other",
    "https://[::1/",
    "https://example.com/#fragment",
]


class Receiver:
    """A server on loopback with scripted responses."""

    def __init__(self, *answers):
        self.got, self.answers = [], list(answers)

    def now(self):
        return 0

    def respond(self, request):
        self.got.append(request)
        return self.answers.pop(0) if self.answers else Response(200, {"secret": "of the internal network"})


def webhook(url):
    return {"name": "hook", "type": "webhook", "webhook": {"url": url, "secret": "shared by both"}}


def post(url, hosts):
    hook = WebhookActions(ConnectorConfig("gw", "hook", "webhook", {"url": url, "secret": "s"}, hosts=hosts))
    action = Action("c", 1, "hook", "send", msgspec.Raw(b'{"event": "x"}'), "a")
    return hook.execute_action(action, ActionContext("gw", {}, 1))


def connectors(*allowed):
    return Connectors(Secrets(["the key that seals these tests' secrets"]), hosts=HostPolicy(allowed))


@pytest.mark.parametrize("url", [*PRIVATE, *MALFORMED])
def test_an_address_is_rejected_when_it_is_registered(url):
    with pytest.raises(ValidationError):
        connectors("*").seal("gw", webhook(url))


@pytest.mark.parametrize("password", ["sesame/x", "sesame?x", "sesame\u2100"])
def test_the_message_about_an_invalid_address_contains_no_password(password):
    with pytest.raises(ConfigurationError, match="not a valid URL") as caught:
        HostPolicy().check("url", f"https://ann:{password}@example.com")
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("url", PRIVATE)
def test_a_private_address_is_not_called(url):
    with pytest.raises(ConfigurationError, match="allowed_hosts"):
        post(url, HostPolicy())


@pytest.mark.parametrize("host", ["a..example", "a" * 64 + ".example"])
def test_a_malformed_host_name_is_an_error_of_the_configuration(host):
    with pytest.raises(ConfigurationError, match="not a valid host name"):
        post(f"https://{host}/", HostPolicy())


def test_connectors_registered_by_an_older_version_are_checked_too():
    receiver = Receiver()
    with serve(receiver) as served:
        with pytest.raises(ConfigurationError, match="allowed_hosts"):
            post(served.url, HostPolicy())
        assert receiver.got == []
        assert post(served.url, LOOPBACK)["secret"]


def test_a_host_name_is_checked_by_its_resolved_address():
    receiver = Receiver()
    with serve(receiver) as served:
        port = served.url.rpartition(":")[2]
        with pytest.raises(ConfigurationError, match="'localhost'"):
            post(f"http://localhost:{port}/", HostPolicy())
        with pytest.raises(ConfigurationError, match="'localhost'"):
            post(f"http://localhost:{port}/", HostPolicy(("*", "10.0.0.0/8")))
        assert receiver.got == []
        assert post(f"http://localhost:{port}/", HostPolicy(("127.0.0.0/8", "::1/128")))
        assert post(f"http://localhost:{port}/", HostPolicy(("LOCALHOST",)))
        assert receiver.got[-1].headers["host"] == f"localhost:{port}"


def test_dns_rebinding_reaches_no_private_address(monkeypatch):
    """DNS rebinding: public when it is checked, private when it is connected to."""
    rebind(monkeypatch, "93.184.215.14", "127.0.0.1")
    monkeypatch.setattr(http_api, "TIMEOUT_S", (0.2, 1))
    receiver = Receiver()
    with serve(receiver) as served:
        api = HttpApi(f"http://rebound.example:{served.url.rpartition(':')[2]}", lambda _: None, attempts=1)
        with pytest.raises(AdapterError):
            api.call("GET", "/")
        with pytest.raises(ConfigurationError):
            api.call("GET", "/")
        api.close()
    assert receiver.got == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status):
    inner = Receiver()
    with serve(inner) as private:
        outer = Receiver(Response(status, "", headers={"Location": private.url}))
        with serve(outer) as served, pytest.raises(ValidationError):
            post(served.url, LOOPBACK)
    assert inner.got == []


@pytest.mark.parametrize("compressed", [False, True])
def test_an_answer_above_the_size_limit_is_rejected(compressed):
    body = b"x" * (2 << 20)
    answer = Response(200, gzip.compress(body), {"Content-Encoding": "gzip"}) if compressed else Response(200, body)
    with serve(Receiver(*[answer] * 3)) as served, pytest.raises(AdapterError, match="more than 1048576 bytes"):
        post(served.url, LOOPBACK)


def _check_with_doctor(url):
    config = load({"gateway": {"url": url}})
    doctor_checks.clock(config)
    doctor_checks.gateway(config)


@pytest.mark.parametrize(
    "ask",
    [
        lambda url: post(url, LOOPBACK),
        _check_with_doctor,
        lambda url: Alerts(SecretStr(url), None, None).send(RunRecovered("r", "flush", [])),
    ],
    ids=["connector", "doctor", "alerts"],
)
def test_passwords_of_the_users_own_netrc_are_not_sent(tmp_path, monkeypatch, ask):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login root password hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    receiver = Receiver()
    with serve(receiver) as served:
        ask(served.url)
    assert receiver.got
    assert all("authorization" not in request.headers for request in receiver.got)


def _requests_of_a_client(url, token):
    transport = HttpTransport(url, "gw", token)
    with closing(transport), suppress(LakeSyncError):
        transport.pull(SyncPull("alice", 0, 10))


def _requests_of_the_command_line(url, token):
    with suppress(LakeSyncError):
        GatewayConnection(load(), url, "gw", token).get("/ready")


def _requests_of_the_pipeline(url, token):
    with closing(RemoteStore(url, token, retry_seconds=0.1)) as store, suppress(LakeSyncError, msgspec.ValidationError):
        store.gateways()


@pytest.mark.parametrize("ask", [_requests_of_a_client, _requests_of_the_command_line, _requests_of_the_pipeline])
def test_a_password_in_netrc_does_not_replace_the_token(tmp_path, monkeypatch, ask):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login root password hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    receiver = Receiver()
    with serve(receiver) as served:
        ask(served.url, "a.b.c")
    assert receiver.got[0].headers["authorization"] == "Bearer a.b.c"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize(
    ("ask", "sent"),
    [
        (_requests_of_the_command_line, "Bearer a.b.c"),
        (_requests_of_the_pipeline, "Bearer a.b.c"),
        (lambda url, _: _check_with_doctor(url), None),
    ],
    ids=["command line", "pipeline", "doctor"],
)
def test_a_password_in_netrc_is_not_sent_after_a_redirect(tmp_path, monkeypatch, ask, sent, host):
    (tmp_path / "netrc").write_text("default login root password hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    receiver = Receiver()
    with serve(receiver) as served:
        receiver.answers.append(Response(307, "", {"Location": served.url.replace("127.0.0.1", host) + "/elsewhere"}))
        ask(served.url, "a.b.c")
    sent_by_redirect = sent if host == "127.0.0.1" else None
    assert [request.headers.get("authorization") for request in receiver.got[:2]] == [sent, sent_by_redirect]


@pytest.mark.parametrize(
    ("allowed", "url", "taken"),
    [
        (["*"], "https://example.com/hook", True),
        (["hooks.example.com"], "https://hooks.example.com/", True),
        (["hooks.example.com"], "https://example.com/", False),
        (["*.example.com"], "https://a.b.example.com./", True),
        (["*.example.com"], "https://example.com.evil.net/", False),
        (["10.1.0.0/16"], "http://10.1.2.3/", True),
        (["10.1.0.0/16"], "http://10.2.2.3/", False),
        (["10.1.0.0/16"], "http://8.8.8.8/", False),
        ([], "https://example.com/", False),
    ],
)
def test_only_allowed_hosts_can_be_registered(allowed, url, taken):
    if taken:
        connectors(*allowed).seal("gw", webhook(url))
    else:
        with pytest.raises(ValidationError, match="may not be called"):
            connectors(*allowed).seal("gw", webhook(url))


@pytest.mark.parametrize("domain", ["evil.example/#", "evil.example/?x=", "a@evil.example/", "x.evil", "..", "a/b"])
def test_an_invalid_jira_domain_is_rejected(domain):
    body = {"name": "j", "type": "jira", "jira": {"domain": domain, "email": "a@b", "apiToken": "t"}}
    with pytest.raises(ValidationError, match="domain"):
        connectors("*").seal("gw", body)


@pytest.mark.parametrize("field", ["instanceUrl", "loginUrl"])
def test_salesforce_addresses_are_checked_too(field):
    settings = {"instanceUrl": "https://acme.my.salesforce.com", "clientId": "c", "clientSecret": "s"}
    body = {"name": "s", "type": "salesforce", "salesforce": {**settings, field: "http://169.254.169.254"}}
    with pytest.raises(ValidationError, match=field):
        connectors("*").seal("gw", body)


def test_public_addresses_are_accepted():
    policy = HostPolicy()
    for address in ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"):
        assert policy._allows(ip_address(address)), address
