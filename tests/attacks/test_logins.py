"""Forged login tokens, and tokens for another gateway: every interface must reject them."""

from __future__ import annotations

import json
import socket
import time

import jwt
import pytest
import requests
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from lakesync.auth import MAX_TOKEN_CHARS
from lakesync.testing.servers.oidc import serve_oidc
from tests.attacks.login_support import (
    AUDIENCE,
    BACKEND,
    FILE_KEY,
    SHARED,
    SHARED_SECRET,
    UNKNOWN_KEY,
    WAYS,
    by_hand,
    issuers_of,
    part,
    payload_of,
    sections_of,
    shown_over,
)
from tests.integration.gateway_support import SECRET, sign

HS256 = {"alg": "HS256", "typ": "JWT"}


class World:
    """Two providers and a gateway that trusts them."""

    def __init__(self, first, second, url):
        self.first, self.second, self.url = first, second, url
        self.alice = first.add_user("alice@example.com", gateway="gw")
        self.bob = second.add_user("bob@example.com", gw="gw")

    def good(self, **changes):
        return self.first.token(self.alice, **changes)

    @property
    def claims(self):
        return payload_of(self.good())

    @property
    def header(self):
        return jwt.get_unverified_header(self.good())

    def signed(self, key, algorithm="RS256", header=None, **changes):
        """A token that is signed with another key."""
        held = {name: value for name, value in (self.claims | changes).items() if value is not None}
        return jwt.encode(held, key, algorithm, {"kid": self.first.keys[-1].kid, **(header or {})})

    @property
    def public(self):
        return self.first.keys[-1].private.public_key()


@pytest.fixture(scope="module")
def world(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    with serve_oidc("auth0") as first, serve_oidc("keycloak") as second:
        served = serve(issuers=issuers_of(folder, *sections_of(first, second, folder)))
        yield World(first, second, served.url)


def now():
    return int(time.time())


def pem(world):
    return world.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def der(world):
    return world.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def kid(name):
    """A token whose kid is a path or SQL injection, signed with the empty key that the injection would load."""
    return lambda w: by_hand(HS256 | {"kid": name}, w.claims, b"")


def signed_kid(name):
    return lambda w: w.signed(UNKNOWN_KEY, header={"kid": name})


REFUSED = {
    # algorithm confusion
    "HS256 with the public key in PEM": (
        "algorithm",
        lambda w: by_hand(HS256 | {"kid": w.header["kid"]}, w.claims, pem(w)),
    ),
    "HS256 with the public key in DER": ("algorithm", lambda w: by_hand(HS256, w.claims, der(w))),
    "HS256 with the key set's entry": (
        "algorithm",
        lambda w: by_hand(HS256, w.claims, RSAAlgorithm.to_jwk(w.public).encode()),
    ),
    "HS256 with the public key, and no issuer": (
        "signature",
        lambda w: by_hand(HS256, w.claims | {"iss": "x"}, pem(w)),
    ),
    "HS256 with the server's own secret, in the issuer's name": (
        "algorithm",
        lambda w: by_hand(HS256, w.claims, SECRET.encode()),
    ),
    "HS256 with the file's key": (
        "algorithm",
        lambda w: by_hand(HS256, w.claims | {"iss": BACKEND}, FILE_KEY.public_key().public_bytes_raw()),
    ),
    "RS512 by the issuer's key": ("algorithm", lambda w: w.signed(w.first.keys[-1].private, "RS512")),
    "PS256 by the issuer's key": ("algorithm", lambda w: w.signed(w.first.keys[-1].private, "PS256")),
    "ES256 that is all zeros": (
        "key",
        lambda w: f"{part({'alg': 'ES256', 'kid': w.header['kid']})}.{part(w.claims)}.{part(bytes(64))}",
    ),
    "RS256 that is HMAC": ("signature", lambda w: by_hand(w.header, w.claims, pem(w))),
    # algorithm none
    **{
        f"alg {name}": ("algorithm", lambda w, name=name: f"{part({'alg': name})}.{part(w.claims)}.")
        for name in ("none", "None", "nOnE", "", " none")
    },
    "alg none with the signature": (
        "algorithm",
        lambda w: f"{part({'alg': 'none'})}.{part(w.claims)}.{w.good().rpartition('.')[2]}",
    ),
    "alg none, no issuer": ("algorithm", lambda w: f"{part({'alg': 'none'})}.{part(w.claims | {'iss': 'x'})}."),
    "no alg": ("algorithm", lambda w: f"{part({'typ': 'JWT'})}.{part(w.claims)}.{part(b'x')}"),
    "signature stripped": ("signature", lambda w: w.good().rpartition(".")[0] + "."),
    "signature of another": (
        "signature",
        lambda w: w.good().rpartition(".")[0] + "." + w.good(jti="b").rpartition(".")[2],
    ),
    "payload changed": (
        "signature",
        lambda w: ".".join([w.good().split(".")[0], part(w.claims | {"sub": "root"}), w.good().split(".")[2]]),
    ),
    # issuer
    "unknown issuer": ("algorithm", lambda w: w.good(iss="https://evil.example.com/")),
    "no issuer": ("algorithm", lambda w: w.good(iss=None)),
    "issuer without its slash": ("algorithm", lambda w: w.good(iss=w.first.issuer.rstrip("/"))),
    "issuer in capitals": ("algorithm", lambda w: w.good(iss=w.first.issuer.upper())),
    "issuer a list": ("algorithm", lambda w: by_hand(w.header, w.claims | {"iss": [w.first.issuer]}, b"")),
    "issuer an object": ("algorithm", lambda w: by_hand(w.header, w.claims | {"iss": {"a": 1}}, b"")),
    # audience
    "another audience": ("audience", lambda w: w.good(aud="https://other.example.com")),
    "several other audiences": ("audience", lambda w: w.good(aud=["a", "b"])),
    "no audience": ("audience", lambda w: w.good(aud=None)),
    "audience empty": ("audience", lambda w: w.good(aud=[])),
    "audience a number": ("audience", lambda w: w.good(aud=1)),
    "audience an object": ("audience", lambda w: w.good(aud={AUDIENCE: True})),
    "audience with a suffix": ("audience", lambda w: w.good(aud=f"{AUDIENCE}.evil.example")),
    "the audience of another issuer": ("audience", lambda w: w.good(aud="lakesync")),
    "audience where none is set": (
        "audience",
        lambda w: jwt.encode(w.claims | {"iss": BACKEND, "gw": "gw"}, FILE_KEY, "EdDSA"),
    ),
    # other parties' keys
    "an unknown key with the issuer's kid": ("signature", lambda w: w.signed(UNKNOWN_KEY)),
    "another issuer's key with its own kid": (
        "key",
        lambda w: w.signed(w.second.keys[-1].private, header={"kid": w.second.keys[-1].kid}),
    ),
    "another issuer's key with the issuer's kid": ("signature", lambda w: w.signed(w.second.keys[-1].private)),
    "the issuer's key in another issuer's name": ("key", lambda w: w.good(iss=w.second.issuer, aud="lakesync")),
    "the file's key in the issuer's name": ("key", lambda w: w.signed(FILE_KEY, "EdDSA")),
    "the shared secret in the issuer's name": ("algorithm", lambda w: by_hand(HS256, w.claims, SHARED_SECRET.encode())),
    "the shared secret as the server's own": (
        "signature",
        lambda _: by_hand(HS256, {"sub": "x", "gw": "gw", "exp": now() + 60}, SHARED_SECRET.encode()),
    ),
    "the server's own secret as the shared one": (
        "signature",
        lambda _: by_hand(HS256, {"iss": SHARED, "sub": "x", "gw": "gw", "exp": now() + 60}, SECRET.encode()),
    ),
    # kid
    **{
        f"kid {name!r} with an empty secret": ("algorithm", kid(name))
        for name in ("../../../../dev/null", "file:///dev/null", "x' UNION SELECT '' --")
    },
    **{
        f"kid {name!r}": ("key", signed_kid(name))
        for name in (
            "../../../../etc/passwd",
            "https://evil.example.com/keys",
            "x' OR '1'='1",
            "0",
            "*",
            "",
            "%00",
            "a\0b",
            "x" * 4000,
            "$(id)",
        )
    },
    "kid a number": ("form", lambda w: f"{part(w.header | {'kid': 1})}.{part(w.claims)}.{part(b'x')}"),
    "kid a list": ("form", lambda w: f"{part(w.header | {'kid': [w.header['kid']]})}.{part(w.claims)}.{part(b'x')}"),
    # keys inside the token
    "jwk of its own": (
        "signature",
        lambda w: w.signed(UNKNOWN_KEY, header={"jwk": json.loads(RSAAlgorithm.to_jwk(UNKNOWN_KEY.public_key()))}),
    ),
    "x5c of its own": ("signature", lambda w: w.signed(UNKNOWN_KEY, header={"x5c": ["MIIB"]})),
    "unknown crit": ("form", lambda w: w.signed(w.first.keys[-1].private, header={"crit": ["x"], "x": 1})),
    # clocks
    "expired": ("exp", lambda w: w.good(exp=now() - 1)),
    "expired long ago": ("exp", lambda w: w.good(exp=1)),
    "no exp": ("exp", lambda w: w.good(exp=None)),
    "exp a text": ("exp", lambda w: by_hand_like(w, exp=str(now() + 60))),
    "exp in milliseconds": ("exp", lambda w: w.good(exp=now() * 1000)),
    "not before the future": ("nbf", lambda w: w.good(nbf=now() + 60)),
    "issued in the future": ("iat", lambda w: w.good(iat=now() + 60)),
    # claims
    "no sub": ("client", lambda w: w.good(sub=None)),
    "sub of an import": ("client", lambda w: w.good(sub="import:root")),
    "sub too long": ("client", lambda w: w.good(sub="x" * 600)),
    "no gateway": ("gateway", lambda w: w.good(**{"https://lakesync.example.com/gateway": None, "gw": "gw"})),
    "gateway a number": ("gateway", lambda w: w.good(**{"https://lakesync.example.com/gateway": 1})),
    "claim that is no Unicode": ("claims", lambda w: w.good(team="\ud800")),
    "too long": ("form", lambda w: w.good(padding="x" * MAX_TOKEN_CHARS)),
}


def by_hand_like(world, **changes):
    """A token of the issuer with claims that PyJWT refuses to sign."""
    body = f"{part(world.header)}.{part(world.claims | changes)}"
    signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(body.encode(), world.first.keys[-1].private)
    return f"{body}.{part(signature)}"


def test_issued_tokens_are_accepted(world):
    for token in (
        world.good(),
        world.second.token(world.bob),
        jwt.encode({"iss": BACKEND, "sub": "x", "gw": "gw", "exp": now() + 60}, FILE_KEY, "EdDSA"),
        jwt.encode({"iss": SHARED, "sub": "x", "gw": "gw", "exp": now() + 60}, SHARED_SECRET, "HS256"),
        sign("x", "gw"),
    ):
        statuses = [shown_over(way, world.url, token).status_code for way in WAYS]
        assert statuses == [200, 101, 101, 403, 403], token
    admin = jwt.encode({"iss": BACKEND, "sub": "x", "gw": "gw", "role": "admin", "exp": now() + 60}, FILE_KEY, "EdDSA")
    assert [shown_over(way, world.url, admin).status_code for way in WAYS] == [200, 101, 101, 200, 200]


@pytest.mark.parametrize("name", REFUSED)
def test_a_forged_token_is_rejected_over_every_interface(world, name):
    check, forge = REFUSED[name]
    token = forge(world)
    for way in WAYS:
        answer = shown_over(way, world.url, token)
        if len(token) > MAX_TOKEN_CHARS and way.startswith("WebSocket"):
            assert answer.status_code == 431
            continue
        assert (answer.status_code, answer.json()["code"]) == (401, "AUTH_ERROR"), way
        error = answer.json()["error"]
        assert f"fails the check '{check}'" in error, way
        assert len(error) < 300
        assert not any(
            secret in error for secret in (SECRET, SHARED_SECRET, "Traceback", token.rpartition(".")[2] or "…")
        )
        assert set(answer.json()) == {"error", "code", "requestId"}


@pytest.mark.parametrize("claims", [{"role": "admin"}, {"roles": ["admin"]}, {"scope": "admin"}, {"gty": "admin"}])
def test_an_unconfigured_role_does_not_grant_admin(world, claims):
    assert shown_over("HTTP", world.url, world.good(**claims)).status_code == 200
    for way in ("admin route", "console"):
        assert shown_over(way, world.url, world.good(**claims)).status_code == 403


def test_a_token_for_another_gateway_is_rejected(world):
    token = world.good(**{"https://lakesync.example.com/gateway": ["other", "another"]})
    for way in WAYS:
        answer = shown_over(way, world.url, token)
        assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN"), way


@pytest.mark.parametrize("name", ["jku", "x5u"])
def test_a_key_that_a_token_names_is_never_fetched(world, name):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        header = {name: f"http://127.0.0.1:{listener.getsockname()[1]}/keys"}
        forged = world.signed(UNKNOWN_KEY, header={**header, "kid": "1"})
        honest = world.signed(world.first.keys[-1].private, header=header)
        assert [shown_over(way, world.url, forged).status_code for way in WAYS] == [401] * len(WAYS)
        assert shown_over("HTTP", world.url, honest).status_code == 200
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("size", [9_000, 40_000, 100_000])
def test_a_malformed_token_of_any_size_is_rejected(world, size):
    token = f"{part(world.header)}.{part(b'x' * size)}.{part(b'y' * 256)}"
    for way in WAYS:
        try:
            status = shown_over(way, world.url, token).status_code
        except requests.ConnectionError:  # the server closes the connection before it has received all of the token
            status = 431
        assert status in (401, 431), way
        assert status == 401 or size > 40_000 or way.startswith("WebSocket"), way
    assert shown_over("HTTP", world.url, world.good()).status_code == 200


@pytest.mark.parametrize("claim", ["nbf", "iat"])
def test_an_issuers_clock_may_be_five_seconds_ahead(world, claim):
    assert shown_over("HTTP", world.url, world.good(**{claim: now() + 3})).status_code == 200
    assert shown_over("HTTP", world.url, world.good(**{claim: now() + 60})).status_code == 401
