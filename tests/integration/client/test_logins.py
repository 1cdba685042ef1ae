"""From a login to a synced row: the settings and code of docs/login/, with a server that behaves like the provider."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests

import lakesync
from lakesync.auth import TokenRejectedError, TokenVerifier, configured_issuers
from lakesync.client import Client
from lakesync.config import load
from lakesync.testing.servers.oidc import OidcProvider, serve_oidc
from tests.integration.gateway_support import DEADLINE, Process, sign, until

PAGES = Path(__file__).parents[3] / "docs" / "login"
TODOS = {
    "table": "todos",
    "columns": [{"name": "title", "type": "string"}, {"name": "team", "type": "string"}],
}
SignedIn = dict[str, str]
"""The app's data after the login, as environment variables."""


def auth0(provider: OidcProvider, email: str) -> SignedIn:
    form = {
        "grant_type": "password",
        "username": email,
        "password": "correct horse",
        "audience": provider.vendor.audience,
    }
    return {"REFRESH_TOKEN": posted(f"{provider.url}/oauth/token", data=form)["refresh_token"]}


def clerk(provider: OidcProvider, email: str) -> SignedIn:
    form = {"identifier": email, "password": "correct horse"}
    return {"SESSION": posted(f"{provider.url}/v1/client/sign_ins", data=form)["response"]["created_session_id"]}


def supabase(provider: OidcProvider, email: str) -> SignedIn:
    place = f"{provider.url}/auth/v1/token?grant_type=password"
    return {"REFRESH_TOKEN": posted(place, json={"email": email, "password": "correct horse"})["refresh_token"]}


def keycloak(provider: OidcProvider, email: str) -> SignedIn:
    form = {"grant_type": "password", "client_id": "notes-app", "username": email, "password": "correct horse"}
    return {"REFRESH_TOKEN": posted(provider.url + provider.vendor.token_path, data=form)["refresh_token"]}


def firebase(provider: OidcProvider, email: str) -> SignedIn:
    place = f"{provider.url}/identitytoolkit.googleapis.com/v1/accounts:signInWithPassword?key=k"
    session = posted(place, json={"email": email, "password": "correct horse", "returnSecureToken": True})
    return {"REFRESH_TOKEN": session["refreshToken"], "LOGIN_URL": f"{provider.url}/securetoken.googleapis.com"}


SIGN_IN = {each.__name__: each for each in (auth0, clerk, supabase, keycloak, firebase)}
ADMIN = {
    "auth0": {"roles": ["sync-admin"]},
    "supabase": {"sync_role": "admin"},
    "keycloak": {"roles": ["sync-admin"]},
    "firebase": {"sync_role": "admin"},
}
"""The provider's data of an admin, for pages whose settings read a role."""


def posted(url: str, **body: Any) -> Any:
    answer = requests.post(url, timeout=DEADLINE, **body)
    answer.raise_for_status()
    return answer.json()


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / f"{name}.md").read_text(), re.DOTALL)


class Login:
    """A provider, a gateway with the settings of its page, and users who log in."""

    def __init__(self, provider: OidcProvider, served: Process, folder: Path, held: ExitStack) -> None:
        self.provider, self.served, self.folder, self.held = provider, served, folder, held
        self.name = provider.vendor.name

    def function(self, email: str, monkeypatch: pytest.MonkeyPatch, **claims: Any) -> Callable[[], str]:
        """Register a user and log in; return the page's function that renews the token."""
        self.provider.add_user(email, **claims)
        for name, value in {"LOGIN_URL": self.provider.url, **SIGN_IN[self.name](self.provider, email)}.items():
            monkeypatch.setenv(name, value)
        code = next(block for block in blocks(self.name, "python") if "fetch_token" in block)
        names: dict[str, Any] = {}
        exec(compile(code, f"{self.name}.md", "exec"), names)  # noqa: S102 the page's own example
        found: Callable[[], str] = names["fetch_token"]
        return found

    def app(self, name: str, token: Callable[[], str], **options: Any) -> Client:
        place = {"url": self.served.url, "gateway": "shop", "token": token}
        return self.held.enter_context(lakesync.open(self.folder / f"{name}.db", schemas=[TODOS], **place, **options))


def settings_of(provider: OidcProvider) -> str:
    """The page's settings, with this provider's address in place of a real one."""
    text = blocks(provider.vendor.name, "toml")[0]
    declared = tomllib.loads(text)["gateway"]["issuers"][0]
    text = text.replace(f'"{declared["issuer"]}"', f'"{provider.issuer}"')
    if "jwks_url" in declared:
        text = text.replace(declared["jwks_url"], provider.url + provider.vendor.jwks_path)
    return text.replace('"PROJECT"', f'"{provider.vendor.audience}"')


@pytest.fixture
def login(tmp_path, spawn) -> Iterator[Callable[..., Login]]:
    """Starts a provider and a gateway."""
    with ExitStack() as held:

        def start(name: str, **options: Any) -> Login:
            provider = held.enter_context(serve_oidc(name, **options))
            (tmp_path / "lakesync.toml").write_text(settings_of(provider))
            (tmp_path / "rules.json").write_text(blocks(name, "json")[-1])
            return Login(provider, spawn(LAKESYNC_CONFIG=str(tmp_path / "lakesync.toml")), tmp_path, held)

        yield start


def titles(db: Client) -> list[str]:
    return sorted(row["title"] for row in db["todos"])


@pytest.mark.parametrize("name", SIGN_IN)
def test_a_user_who_logged_in_gets_the_rows_that_a_rule_on_a_claim_shows(login, monkeypatch, name):
    world = login(name)
    boss = world.function("boss@example.com", monkeypatch, **ADMIN[name]) if name in ADMIN else None
    bearer = boss() if boss is not None else sign("boss", "shop", role="admin")
    schema = requests.post(
        f"{world.served.url}/admin/schema/shop",
        json=TODOS,
        headers={"Authorization": f"Bearer {bearer}"},
        timeout=DEADLINE,
    )
    assert schema.status_code == 200, schema.text
    alice, anna, bob = (
        world.app(who, world.function(f"{who}@example.com", monkeypatch, team=team))
        for who, team in (("alice", "red"), ("anna", "red"), ("bob", "blue"))
    )
    alice["todos"].insert(title="of the red team", team="red")
    bob["todos"].insert(title="of the blue team", team="blue")
    for db in (alice, bob, anna, alice):
        db.sync()
    assert (titles(alice), titles(anna), titles(bob)) == (["of the red team"],) * 2 + (["of the blue team"],)
    assert alice.client_id == world.provider.users["alice@example.com"].id
    client = requests.get(
        f"{world.served.url}/admin/schema/shop",
        headers={"Authorization": f"Bearer {world.function('eve@example.com', monkeypatch, team='red')()}"},
        timeout=DEADLINE,
    )
    assert client.status_code == 403


def test_an_app_outlasts_its_tokens_and_an_outage_of_its_provider(login, monkeypatch):
    world = login("supabase", lifetime=3)
    alice = world.app("alice", world.function("alice@example.com", monkeypatch, team="red"), realtime=True)
    anna = world.app("anna", world.function("anna@example.com", monkeypatch, team="red"))
    alice.coordinator.start_auto_sync()
    written = []

    def write() -> None:
        written.append(f"n{len(written)}")
        alice["todos"].insert(title=written[-1], team="red")

    def renewals() -> int:
        return sum(method == "POST" and status == 200 for method, _, status in world.provider.calls)

    def failures() -> int:
        return sum(method == "POST" and status == 503 for method, _, status in world.provider.calls)

    def everything_is_pushed() -> bool:
        return alice.status.pending == 0 and alice.status.last_error is None

    write()
    until(everything_is_pushed, "the first row to be pushed")
    before = renewals()
    until(lambda: renewals() >= before + 3, "tokens to be renewed")
    write()
    world.provider.down = True
    before = failures()

    def token_has_ended() -> bool:
        # an open WebSocket still accepts pushes
        return failures() > before and alice.status.last_error is not None and not alice.status.live

    until(token_has_ended, "the last token to end")
    write()
    assert alice.status.pending > 0
    world.provider.down = False
    until(everything_is_pushed, "what waited to be pushed")
    anna.sync()
    assert titles(anna) == sorted(written)


def test_each_login_page_lists_the_required_settings(tmp_path, monkeypatch):
    """The settings of a page accept its provider's token; an error explains each setting that is left out."""
    for name in SIGN_IN:
        with serve_oidc(name) as provider:
            (tmp_path / "lakesync.toml").write_text(settings_of(provider))
            monkeypatch.setenv("LAKESYNC_CONFIG", str(tmp_path / "lakesync.toml"))
            user = provider.add_user("alice@example.com", team="red")
            config = load()
            verifier = TokenVerifier(issuers=configured_issuers(config), sole_gateway=config.sole_gateway)
            token = provider.token(user)
            assert verifier.load_keys(token) == []
            assert {finding.state for finding in verifier.findings(token)} == {"ok"}
            rule = json.loads(blocks(name, "json")[-1])["buckets"][0]["filters"][0]["value"]
            assert verifier.verify(token).claims[rule.removeprefix("jwt:")] == "red"
            for changes in ({"iss": "https://other"}, {"aud": "other"}, {"exp": 1}, {"sub": ""}):
                with pytest.raises(TokenRejectedError):
                    verifier.verify(provider.token(user, **changes))
