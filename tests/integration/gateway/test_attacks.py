"""Forged tokens, and tokens for another purpose, are rejected; the answer reveals nothing, and nothing is stored."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import time
from typing import Any

import jwt
import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import rsa

from lakesync.auth import MAX_TOKEN_CHARS
from tests.integration.gateway.operations import OPERATIONS
from tests.integration.gateway_support import DEADLINE, PREVIOUS, SECRET, Client, delta, filled, sign

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
GOOD = {"sub": "client-1", "gw": "gw", "exp": int(time.time()) + 86_400}
HS256 = {"alg": "HS256", "typ": "JWT"}


def part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def assembled(header: Any, payload: Any, secret: str = SECRET, digest: str = "sha256") -> str:
    """A signed token with arbitrary parts."""
    body = f"{part(header)}.{part(payload)}"
    return f"{body}.{part(hmac.digest(secret.encode(), body.encode(), digest))}"


def good(**claims: Any) -> str:
    return assembled(HS256, GOOD | claims)


def without(name: str) -> str:
    return assembled(HS256, {key: value for key, value in GOOD.items() if key != name})


def stripped(token: str) -> str:
    return token.rpartition(".")[0] + "."


def tampered() -> str:
    head, _, signature = good().split(".")
    return f"{head}.{part(GOOD | {'role': 'admin'})}.{signature}"


REFUSED = {
    "alg none": f"{part({'alg': 'none'})}.{part(GOOD)}.",
    "alg None": f"{part({'alg': 'None'})}.{part(GOOD)}.",
    "alg none with a signature": assembled({"alg": "none"}, GOOD),
    "no alg": assembled({"typ": "JWT"}, GOOD),
    "alg null": assembled({"alg": None}, GOOD),
    "alg a list": assembled({"alg": ["HS256"]}, GOOD),
    "alg hs256": assembled({"alg": "hs256"}, GOOD),
    "HS512 with the secret": assembled({"alg": "HS512"}, GOOD, digest="sha512"),
    "HS384 with the secret": assembled({"alg": "HS384"}, GOOD, digest="sha384"),
    "RS256 named, HS256 done": assembled({"alg": "RS256"}, GOOD),
    "RS256 with a key of its own": jwt.encode(GOOD, KEY, algorithm="RS256"),
    "stripped signature": stripped(good()),
    "signature of another": good().rpartition(".")[0] + "." + sign(sub="other").rpartition(".")[2],
    "payload changed": tampered(),
    "wrong secret": assembled(HS256, GOOD, "another secret, long enough for HS256"),
    "the empty secret": assembled(HS256, GOOD, ""),
    "the secret's hash": assembled(HS256, GOOD, hashlib.sha256(SECRET.encode()).hexdigest()),
    "expired": good(exp=int(time.time()) - 1),
    "long expired": good(exp=1),
    "not before the future": good(nbf=int(time.time()) + 86_400),
    "not before a word": good(nbf="now"),
    "issued in the future": good(iat=int(time.time()) + 86_400),
    "no exp": without("exp"),
    "exp a string": good(exp=str(GOOD["exp"])),
    "exp null": good(exp=None),
    "exp true": good(exp=True),
    "exp a list": good(exp=[GOOD["exp"]]),
    "exp beyond any float": good(exp=10**400),
    "exp beyond any year": good(exp=1e30),
    "exp in milliseconds": good(exp=int(time.time() * 1000)),
    "exp infinite": assembled(HS256, json.dumps(GOOD).replace(str(GOOD["exp"]), "Infinity").encode()),
    "exp not a number": assembled(HS256, json.dumps(GOOD).replace(str(GOOD["exp"]), "NaN").encode()),
    "exp negative": good(exp=-1),
    "no gw": without("gw"),
    "gw null": good(gw=None),
    "gw a list": good(gw=["gw"]),
    "gw empty": good(gw=""),
    "no sub": without("sub"),
    "sub a number": good(sub=1),
    "sub a list": good(sub=["client-1"]),
    "sub empty": good(sub=""),
    "sub with NUL": good(sub="client-1\0"),
    "sub too long": good(sub="x" * 513),
    "sub no Unicode": good(sub="\ud800"),
    "a claim no Unicode": good(team="\udfff"),
    "role a list": good(role=["admin"]),
    "role Admin": good(role="Admin"),
    "role with a space": good(role="admin "),
    "role unknown": good(role="root"),
    "role true": good(role=True),
    "role null": good(role=None),
    "role an object": good(role={"admin": True}),
    "unknown crit": assembled(HS256 | {"crit": ["x"], "x": 1}, GOOD),
    "b64 false": assembled(HS256 | {"b64": False, "crit": ["b64"]}, GOOD),
    "kid a path": assembled(HS256 | {"kid": "../../dev/null"}, GOOD, ""),
    "kid an injection": assembled(HS256 | {"kid": "x' UNION SELECT 'secret' --"}, GOOD, "secret"),
    "kid a number": assembled(HS256 | {"kid": 1}, GOOD),
    "jwk of its own": jwt.encode(GOOD, KEY, "RS256", headers={"jwk": {"kty": "RSA", "n": "AQAB", "e": "AQAB"}}),
    "x5c of its own": jwt.encode(GOOD, KEY, "RS256", headers={"x5c": ["MIIB"]}),
    "payload a list": assembled(HS256, [GOOD]),
    "payload a string": assembled(HS256, "admin"),
    "payload no JSON": assembled(HS256, b"{"),
    "payload no UTF-8": assembled(HS256, b'{"sub":"\xff"}'),
    "payload nested deep": assembled(HS256, b'{"sub":' + b"[" * 3000 + b"]" * 3000 + b"}"),
    "header no JSON": f"{part(b'{')}.{part(GOOD)}.{part(b'x')}",
    "header a list": assembled([HS256], GOOD),
    "five parts": good() + ".a.b",
    "two parts": stripped(good())[:-1],
    "three dots": "...",
    "no base64": "ä.ö.ü".encode().decode("latin-1"),
    "the secret itself": SECRET,
    "two tokens": f"{good()} {good()}",
    "two tokens with a comma": f"{good()},{good()}",
    "too long": good(padding="x" * MAX_TOKEN_CHARS),
}


def call(served, *headers: tuple[str, str], query: str = "") -> tuple[int, dict[str, Any]]:
    """Send a GET over a raw socket, with any headers, also repeated ones."""
    host, port = served.url.removeprefix("http://").split(":")
    lines = [f"GET /sync/gw/metrics{query} HTTP/1.1", "Host: x", "Connection: close", *map(": ".join, headers), "", ""]
    with socket.create_connection((host, int(port)), DEADLINE) as connection:
        connection.sendall("\r\n".join(lines).encode("latin-1"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("name", REFUSED)
def test_a_forged_token_is_rejected(served, name):
    status, answer = call(served, ("Authorization", f"Bearer {REFUSED[name]}"))
    assert (status, answer["code"]) == (401, "AUTH_ERROR")
    assert SECRET not in answer["error"]
    assert "Traceback" not in answer["error"]
    assert set(answer) == {"error", "code", "requestId"}
    assert len(answer["error"]) < 300


def test_a_valid_token_built_the_same_way_is_accepted(served):
    assert call(served, ("Authorization", f"Bearer {good()}"))[0] == 200
    assert call(served, ("authorization", f"bearer  {good(exp=GOOD['exp'] + 0.5)} "))[0] == 200


def test_a_key_that_a_token_names_is_not_fetched(served):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/keys"
        for name in ("jku", "x5u"):
            token = jwt.encode(GOOD, KEY, "RS256", headers={name: address, "kid": "1"})
            assert call(served, ("Authorization", f"Bearer {token}"))[0] == 401
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", f"Bearer {good()}"), ("Authorization", f"Bearer {good()}")],
        [("Authorization", f"Bearer {good()}"), ("authorization", "Bearer x")],
        [("Authorization", "Basic eA=="), ("Authorization", f"Bearer {good()}")],
        [("Authorization", f"Basic {good()}")],
        [("Authorization", f"Token {good()}")],
        [("Authorization", good())],
        [("Authorization", "Bearer")],
        [("Proxy-Authorization", f"Bearer {good()}")],
        [("X-Authorization", f"Bearer {good()}")],
        [("Cookie", f"token={good()}; Authorization=Bearer {good()}")],
        [("Sec-WebSocket-Protocol", f"bearer, {good()}")],
    ],
)
def test_a_token_outside_of_the_authorization_header_is_rejected(served, headers):
    assert call(served, *headers)[0] == 401


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each.access != "open"], ids=lambda o: o.path)
@pytest.mark.parametrize("name", ["token", "access_token", "Authorization", "jwt"])
def test_a_token_in_the_query_is_rejected(served, operation, name):
    path = filled(operation.path, gateway="gw", method="gateways")
    query = {name: good(role="admin")}
    answer = requests.request(operation.method, served.url + path, params=query, timeout=DEADLINE)
    assert answer.status_code == 401
    assert "header" in answer.json()["error"] or "service token" in answer.json()["error"]


def test_tokens_of_a_removed_secret_are_rejected(serve):
    rotated = serve(secrets=("the secret that comes after these two", SECRET))
    for secret, status in (("the secret that comes after these two", 200), (SECRET, 200), (PREVIOUS, 401)):
        token = assembled(HS256, GOOD, secret)
        assert call(rotated, ("Authorization", f"Bearer {token}"))[0] == status
    alone = serve(secrets=("the secret that comes after these two",))
    assert call(alone, ("Authorization", f"Bearer {good()}"))[0] == 401


def test_a_token_is_valid_only_for_its_own_client(served):
    alice = served.client("alice")
    alice.push(delta("t1", {"n": 1}, client="alice"))
    mallory = served.client("mallory", alice.gateway)
    in_her_name = {"clientId": "alice", "deltas": [delta("t2", {"n": 2}, client="alice")], "lastSeenHlc": "0"}
    assert mallory.call("POST", "/sync/{gw}/push", json=in_her_name).status_code == 403
    answer = mallory.push(delta("t3", {"n": 3}, client="mallory"), delta("t4", {"n": 4}, client="alice"))
    assert answer.status_code == 403
    assert len(answer.json()["rejected"]) == 1
    for query in ({"clientId": "alice"}, {"clientId": "ALICE"}, {"clientId": "alice "}):
        assert mallory.call("GET", "/sync/{gw}/pull", params={"since": "0", **query}).status_code == 403
    assert mallory.call("POST", "/sync/{gw}/pull", json={"clientId": "alice", "sinceHlc": "0"}).status_code == 403
    assert mallory.call("GET", "/sync/{gw}/checkpoint", params={"clientId": "alice"}).status_code == 403
    assert [each["rowId"] for each in mallory.pull().json()["deltas"]] == ["t1"]


@pytest.mark.parametrize("claims", [{"roles": ["admin"]}, {"Role": "admin"}, {"admin": "true"}, {"scope": "admin"}])
def test_no_other_claim_grants_the_role_admin(served, claims):
    for operation in OPERATIONS:
        if operation.access == "admin":
            path = filled(operation.path, gateway="gw")
            assert Client(served.url, "gw", claims=claims).call(operation.method, path).status_code == 403
