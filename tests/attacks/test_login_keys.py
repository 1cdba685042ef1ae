"""A login provider's keys: changed, withdrawn, unreachable, unsafe."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from websockets.exceptions import ConnectionClosed

from lakesync.auth import keys
from lakesync.auth.keys import KeysUnavailableError, parse_keys
from lakesync.testing.servers.oidc import serve_oidc
from tests.attacks.login_support import AUDIENCE, UNKNOWN_KEY, WAYS, issuers_of, part, payload_of, shown_over
from tests.integration.gateway_support import DEADLINE, Client, sign, until
from tests.integration.live.live_support import Live


def now():
    return int(time.time())


def test_a_new_key_is_found_and_a_withdrawn_one_ends_its_sessions(serve, tmp_path):
    with serve_oidc("supabase") as provider:
        user = provider.add_user("alice@example.com")
        section = {"issuer": provider.issuer, "audience": "authenticated"}
        served = serve(issuers=issuers_of(tmp_path, section), sole_gateway="gw")
        old = provider.keys[0].kid
        before = provider.token(user)
        assert shown_over("HTTP", served.url, before).status_code == 200
        bearer = {"Authorization": f"Bearer {before}"}
        with Live(Client(served.url, "gw"), additional_headers=bearer) as connection:
            provider.rotate()
            after = provider.token(user)
            assert [shown_over(way, served.url, after).status_code for way in WAYS] == [200, 101, 101, 403, 403]
            assert shown_over("HTTP", served.url, before).status_code == 200  # its key is still in the set
            provider.withdraw(old)
            fetched = provider.token(user, key=provider.rotate())  # an unknown kid makes the gateway fetch the keys
            assert shown_over("HTTP", served.url, fetched).status_code == 200
            for way in WAYS:
                answer = shown_over(way, served.url, before)
                assert (answer.status_code, "'key'" in answer.json()["error"]) == (401, True), way
            with pytest.raises(ConnectionClosed) as closed:
                connection.socket.recv(timeout=DEADLINE)
        assert closed.value.rcvd.code == 1008
        assert "withdrawn" in closed.value.rcvd.reason
        assert shown_over("HTTP", served.url, after).status_code == 200


def test_an_outage_of_the_provider_ends_no_session_whose_key_is_known(serve, tmp_path):
    with serve_oidc("clerk") as provider:
        user = provider.add_user("alice@example.com")
        section = {"issuer": provider.issuer}
        served = serve(issuers=issuers_of(tmp_path, section), sole_gateway="gw")
        held = provider.token(user)
        assert shown_over("HTTP", served.url, held).status_code == 200
        provider.down = True
        asked = len(provider.calls)
        provider.rotate()
        assert shown_over("HTTP", served.url, provider.token(user)).status_code == 401
        assert len(provider.calls) > asked
        for token in (held, provider.token(user, key=provider.keys[0])):
            assert [shown_over(way, served.url, token).status_code for way in WAYS] == [200, 101, 101, 403, 403]
        provider.down = False
        assert shown_over("HTTP", served.url, provider.token(user)).status_code == 200


def test_tokens_with_unknown_keys_do_not_make_the_gateway_flood_the_provider(serve, tmp_path):
    with serve_oidc("clerk") as provider:
        user = provider.add_user("alice@example.com")
        section = {"issuer": provider.issuer, "jwks_url": provider.url + provider.vendor.jwks_path}
        served = serve(issuers=issuers_of(tmp_path, section, cooldown=3600), sole_gateway="gw")
        assert shown_over("HTTP", served.url, provider.token(user)).status_code == 200
        forged = [
            jwt.encode(payload_of(provider.token(user)), UNKNOWN_KEY, "RS256", {"kid": str(n)}) for n in range(60)
        ]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda token: shown_over("HTTP", served.url, token).status_code, forged))
        assert answers == [401] * len(forged)
        assert len(provider.calls) == 1


def test_an_unresponsive_provider_does_not_delay_others(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "FETCH_SECONDS", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        served = serve(issuers=issuers_of(tmp_path, {"issuer": address}), sole_gateway="gw")
        token = jwt.encode({"iss": address, "sub": "x", "exp": now() + 60}, UNKNOWN_KEY, "RS256", {"kid": "1"})
        found = []
        waiting = threading.Thread(target=lambda: found.append(shown_over("HTTP", served.url, token)))
        waiting.start()
        served_meanwhile = 0
        while waiting.is_alive():
            assert shown_over("HTTP", served.url, sign("x", "gw")).status_code == 200
            served_meanwhile += 1
        assert served_meanwhile > 2
        assert "fails the check 'key'" in found[0].json()["error"]


def test_a_provider_that_starts_after_the_gateway_is_used(serve, tmp_path):
    with serve_oidc("auth0", down=True) as provider:
        user = provider.add_user("alice@example.com", gateway="gw")
        section = {"issuer": provider.issuer, "audience": AUDIENCE}
        served = serve(issuers=issuers_of(tmp_path, section), sole_gateway="gw")
        until(lambda: provider.calls, "the gateway to ask at its start")
        assert shown_over("HTTP", served.url, provider.token(user)).status_code == 401
        provider.down = False
        assert shown_over("HTTP", served.url, provider.token(user)).status_code == 200


WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 that is the attack


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [{"kty": "oct", "k": part(b"a secret that a public set should not have"), "kid": "1", "alg": "HS256"}],
        [{**json.loads(RSAAlgorithm.to_jwk(WEAK.public_key())), "kid": "1"}],
        [{**json.loads(RSAAlgorithm.to_jwk(UNKNOWN_KEY.public_key())), "use": "enc"}],
        [{**json.loads(RSAAlgorithm.to_jwk(UNKNOWN_KEY.public_key())), "alg": "HS256"}],
        [{"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"}],
        [{"kty": "EC", "crv": "P-256", "x": part(b"\1" * 32), "y": part(b"\1" * 32)}],
        ["key", None, 1],
    ],
    ids=[
        "none",
        "a secret",
        "RSA of 1024 bits",
        "of encryption",
        "RSA for HS256",
        "P-521",
        "no point of the curve",
        "no keys",
    ],
)
def test_an_unsafe_key_is_rejected(entries):
    with pytest.raises(KeysUnavailableError):
        parse_keys(json.dumps({"keys": entries}).encode())


def test_only_the_public_part_of_a_private_key_is_kept():
    entry = {**json.loads(RSAAlgorithm.to_jwk(UNKNOWN_KEY)), "kid": "1"}
    found = parse_keys(json.dumps({"keys": [entry]}).encode())
    assert isinstance(found[0].material, rsa.RSAPublicKey)
