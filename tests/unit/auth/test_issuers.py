"""The settings of issuers decide a token's client, its gateways and its claims for rules."""

from __future__ import annotations

import json
import re
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from lakesync import config
from lakesync.auth import Issuer, TokenRejectedError, TokenVerifier, configured_issuers
from lakesync.auth.issuers import MAX_PATH_CHARS, MAX_PATHS, flatten_claims, rule_claims
from lakesync.model.errors import ConfigurationError

SECRET = "a secret of at least thirty-two bytes"
ISSUER = "https://login.example.com"


@pytest.fixture(autouse=True)
def _no_file(monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")


def verifier(*sections, sole=None, secrets=()):
    """A verifier of issuers as lakesync.toml declares them, each with the secret above."""
    declared = [{"issuer": ISSUER, "secret": SECRET, **section} for section in sections]
    loaded = config.load({"gateway": {"issuers": declared}})
    return TokenVerifier(secrets, issuers=configured_issuers(loaded), sole_gateway=sole)


def token(**claims):
    held = {"iss": ISSUER, "sub": "alice", "exp": time.time() + 60, **claims}
    return jwt.encode({name: value for name, value in held.items() if value is not None}, SECRET, "HS256")


def refused(verifying, **claims):
    with pytest.raises(TokenRejectedError) as raised:
        verifying.verify(token(**claims))
    return raised.value.check


def test_nested_claims_are_read_by_their_path():
    payload = {
        "team": "red",
        "app_metadata": {"team": "blue", "teams": ["a", "b"], "level": 3, "deep": {"er": "x"}},
        "https://example.com/team": "green",
    }
    assert rule_claims(flatten_claims(payload)) == {
        "team": "red",
        "app_metadata.team": "blue",
        "app_metadata.teams": ["a", "b"],
        "app_metadata.deep.er": "x",
        "https://example.com/team": "green",
    }


def test_a_claim_with_dots_in_its_name_overrides_a_path():
    assert flatten_claims({"a": {"b": "path"}, "a.b": "name"})["a.b"] == "name"
    assert rule_claims(flatten_claims({"a": {"b": "path"}, "a.b": 5})) == {}
    assert flatten_claims({"a": {"b": {"c": "deeper"}, "b.c": "nearer"}})["a.b.c"] == "nearer"


names = st.sampled_from(["a", "b", "a.b", "b.a", "a.", ".b", "."])
payloads = st.recursive(
    st.sampled_from(["x", "", ["x", "y"], [], [1], None, 7]),
    lambda inner: st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(names, payloads, max_size=4))
def test_paths_do_not_change_how_top_level_claims_are_read(payload):
    before = rule_claims(payload)
    now = rule_claims(flatten_claims(payload))
    assert {name: now.get(name) for name in payload} == {name: before.get(name) for name in payload}


def test_paths_of_nested_claims_have_a_limited_depth_number_and_length():
    deep = current = {}
    for _ in range(50):
        current["n"] = current = {}
    assert max(path.count(".") for path in flatten_claims(deep)) == 7
    assert len(flatten_claims({"o": {str(n): "x" for n in range(2000)}})) <= 1 + MAX_PATHS
    assert max(map(len, flatten_claims({"o" * 300: {"a": "x"}, "p": {"q" * 300: "x", "r": "y"}}))) <= max(
        300, MAX_PATH_CHARS
    )


def test_a_server_with_one_gateway_needs_no_gateway_claim():
    assert verifier({}, sole="shop").verify(token()).gateways == ("shop",)
    assert verifier({}, sole="shop").verify(token(gw="other")).gateways == ("other",)
    assert refused(verifier({})) == "gateway"
    own = TokenVerifier([SECRET], sole_gateway="shop")
    assert own.verify(token(iss=None)).gateways == ("shop",)


def test_the_gateway_claim_lists_the_gateways():
    found = verifier({"gateway_claim": "org.gateways"}, sole="shop")
    assert found.verify(token(org={"gateways": ["a", "b"]})).gateways == ("a", "b")
    assert found.verify(token(org={"gateways": "a"}, gw="other")).gateways == ("a",)
    for org in (None, {}, {"gateways": []}, {"gateways": [""]}, {"gateways": 1}, {"gateways": {"a": True}}):
        assert refused(found, org=org) == "gateway"


def test_rules_of_the_issuer_decide_the_gateways_of_a_token():
    enter = [{"gateway": "shop"}, {"gateway": "desk", "claim": "realm.roles", "values": ["staff", "boss"]}]
    found = verifier({"enter": enter}, sole="ignored")
    assert found.verify(token()).gateways == ("shop",)
    assert found.verify(token(realm={"roles": ["x", "boss"]})).gateways == ("shop", "desk")
    assert found.verify(token(realm={"roles": "staff"}, gw="desk")).gateways == ("desk",)
    assert found.verify(token(gw="desk")).gateways == ()


def test_an_unknown_role_is_a_client():
    found = verifier({"role_claim": "app.roles", "admin_roles": ["ops", "boss"]}, sole="shop")
    for role, meant in (
        ("boss", "admin"),
        (["x", "ops"], "admin"),
        ("admin", "client"),
        (7, "client"),
        (None, "client"),
    ):
        assert found.verify(token(app={"roles": role}, role="admin")).role == meant
    assert verifier({}, sole="shop").verify(token(role="admin")).role == "client"


def test_the_client_comes_from_a_claim():
    found = verifier({"client_claim": "user.id", "client_prefix": "b:"}, sole="shop").verify(token(user={"id": "7"}))
    assert (found.client_id, found.claims["sub"]) == ("b:7", "b:7")
    assert refused(verifier({"client_claim": "user.id"}, sole="shop")) == "client"
    assert refused(verifier({"client_prefix": "import:"}, sole="shop")) == "client"


def test_claims_can_be_required():
    found = verifier({"require": {"azp": ["app", "web"], "realm.typ": "Bearer"}}, sole="shop")
    assert found.verify(token(azp="web", realm={"typ": "Bearer"})).client_id == "alice"
    for claims in (
        {},
        {"azp": "web"},
        {"azp": "evil", "realm": {"typ": "Bearer"}},
        {"azp": ["evil"], "realm.typ": "x"},
    ):
        assert refused(found, **claims) == "require"


def test_one_issuer_may_have_several_audiences_with_different_settings():
    found = verifier(
        {"audience": "one", "enter": [{"gateway": "a"}]}, {"audience": ["two", "three"], "enter": [{"gateway": "b"}]}
    )
    assert [found.verify(token(aud=aud)).gateways for aud in ("one", "three", ["x", "two"])] == [("a",), ("b",), ("b",)]
    assert refused(found, aud="four") == "audience"
    assert refused(found) == "audience"


def test_the_error_is_that_of_the_best_matching_issuer():
    found = verifier({"audience": "one"}, {"audience": "two"}, sole="shop")
    assert refused(found, aud="two", exp=1) == "exp"


def test_findings_name_every_check():
    found = verifier({"audience": "one"}, sole="shop")
    states = {finding.check: finding.state for finding in found.findings(token(exp=1))}
    assert (states["signature"], states["audience"], states["exp"], states["client"]) == (
        "ok",
        "failed",
        "failed",
        "ok",
    )
    assert "skipped" not in states.values()
    stranger = jwt.encode({"iss": ISSUER, "aud": "one", "sub": "x", "exp": 1}, "another" * 9, "HS256")
    states = {finding.check: finding.state for finding in found.findings(stranger)}
    assert (states["signature"], states["exp"], states["gateway"]) == ("failed", "failed", "ok")
    for text, failed in (("x", "form"), (jwt.encode({"iss": "x"}, SECRET, "HS256"), "issuer")):
        findings = found.findings(text)
        assert {f.check for f in findings if f.state == "failed"} == {failed}
        assert {f.state for f in findings[[f.check for f in findings].index(failed) + 1 :]} == {"skipped"}
    assert not any(SECRET in finding.detail for finding in found.findings(token()))


@pytest.mark.parametrize("algorithm", ["RS256", "HS256"])
def test_a_token_of_an_unknown_issuer_is_rejected_with_its_iss(algorithm):
    verifying = verifier({}, secrets=["the server's own secret, long enough"])
    key = rsa.generate_private_key(65537, 2048) if algorithm == "RS256" else SECRET
    unknown = jwt.encode({"iss": f"{ISSUER}/", "sub": "alice", "exp": time.time() + 60}, key, algorithm)
    with pytest.raises(TokenRejectedError, match=f"Its iss '{ISSUER}/' is not an issuer of this gateway") as raised:
        verifying.verify(unknown)
    assert f"'{ISSUER}'" not in str(raised.value)  # any caller may read it
    details = {finding.check: finding.detail for finding in verifying.findings(unknown)}
    assert f"[[gateway.issuers]] has '{ISSUER}'" in details["issuer"]  # for the operator, who runs `token inspect`


def test_findings_agree_with_the_verification():
    verifying = verifier(
        {"audience": "one", "require": {"r": "x"}}, sole="shop", secrets=["the server's own secret, long enough"]
    )
    for claims in ({}, {"aud": "one"}, {"aud": "one", "r": "x"}, {"aud": "one", "r": "x", "exp": 1}, {"iss": None}):
        given = token(**claims)
        failed = [finding.check for finding in verifying.findings(given) if finding.state == "failed"]
        if failed:
            with pytest.raises(TokenRejectedError, match=f"'{failed[0]}'"):
                verifying.verify(given)
        else:
            verifying.verify(given)


def test_an_unusable_key_file_is_an_error_with_its_name(tmp_path):
    (tmp_path / "empty.json").write_text('{"keys": []}')
    for name in ("empty.json", "absent.json"):
        with pytest.raises(ConfigurationError, match=name):
            configured_issuers(config.load({"gateway": {"issuers": [{"issuer": "x", "keys": str(tmp_path / name)}]}}))


def test_no_keys_are_fetched_for_an_issuer_with_a_secret():
    assert not Issuer.of_secrets([SECRET]).is_refreshable
    assert (
        json.loads(config.load({"gateway": {"issuers": [{"issuer": "x", "secret": "s"}]}}).model_dump_json())[
            "gateway"
        ]["issuers"][0]["secret"]
        == "(set)"
    )


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"secret": "sesame", "algorithms": ["RS256"]}, "HS256 requires secret"),
        ({"secret": "sesame", "algorithms": ["HS256", "RS256"]}, "excludes other algorithms"),
        ({"algorithms": ["HS256"]}, "which use public keys"),
        ({"algorithms": ["none"]}, "algorithms"),
        ({"secret": "sesame", "keys": "file"}, "keys and secret are set"),
        ({"jwks_url": "http://login.example.com/keys"}, "use https://"),
        ({"jwks_url": "http://8.8.8.8/keys"}, "use https://"),
        ({"jwks_url": "http://134744072/keys"}, "use https://"),  # 8.8.8.8 as an integer
        ({"jwks_url": "http://0x08080808/keys"}, "use https://"),
        ({"jwks_url": "file:///etc/keys"}, "it must be https://HOST/PATH"),
        ({"jwks_url": "https://user:sesame@login/keys"}, "without a user"),
        ({"issuer": "my-backend"}, "it must be https://HOST/PATH"),
        ({"enter": [{"gateway": "shop", "claim": "roles"}]}, "claim and values depend on each other"),
        ({"isuer": "x"}, "did you mean gateway.issuers.0.issuer?"),
    ],
)
def test_unsafe_or_meaningless_issuer_settings_are_rejected(section, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)) as raised:
        config.load({"gateway": {"issuers": [{"issuer": ISSUER, **section}]}})
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["https://a.b/c", "http://127.0.0.1:1/c", "http://keycloak:8080/c", "http://10.0.0.1/c"]
)
def test_keys_are_fetched_over_tls_or_from_loopback(url):
    assert (
        config.load({"gateway": {"issuers": [{"issuer": ISSUER, "jwks_url": url}]}}).gateway.issuers[0].jwks_url == url
    )


def test_issuers_are_read_from_the_file_and_from_variables(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(
        f'[[gateway.issuers]]\nissuer = "{ISSUER}"\nkeys = "keys.json"\n'
        f'[[gateway.issuers]]\nissuer = "{ISSUER}"\nsecret = "env:SHARED"\naudience = ["a", "b"]\n'
    )
    monkeypatch.setenv("LAKESYNC_CONFIG", str(tmp_path / "mine.toml"))
    monkeypatch.setenv("SHARED", SECRET)
    loaded = config.load()
    first, second = loaded.gateway.issuers
    assert (first.keys, second.secret.get_secret_value(), second.audience) == (
        str(tmp_path / "keys.json"),
        SECRET,
        ("a", "b"),
    )
    assert SECRET not in repr(loaded)
    for name, value in loaded.environment().items():
        monkeypatch.setenv(name, value)
    assert config.load() == loaded
    monkeypatch.setenv("LAKESYNC_CONFIG", str(tmp_path / "mine.toml"))
    (tmp_path / "mine.toml").write_text(f'[[gateway.issuers]]\nissuer = "{ISSUER}"\nsecret = "hunter2"\n')
    with pytest.raises(ConfigurationError, match="reference") as raised:
        config.load()
    assert "hunter2" not in str(raised.value)
