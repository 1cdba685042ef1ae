"""The keys of issuers are fetched when needed, replaced when they change, and checked."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from contextlib import suppress
from functools import partial

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from lakesync.auth import Issuer, TokenRejectedError, TokenVerifier, keys
from lakesync.auth.keys import Key, KeySet, KeysUnavailableError, discover_set, fetch_set
from lakesync.model.validation import check_keys_url
from lakesync.testing.servers import Response, serve

ISSUER = "https://login.example.com"


def source_of(answers, cooldown=10.0):
    """Keys that are loaded at each refresh, a clock, and the number of loads."""
    clock, asked = [0.0], []

    def load():
        asked.append(clock[0])
        found = answers[min(len(asked), len(answers)) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    return KeySet(load, cooldown=cooldown, clock=lambda: clock[0]), clock, asked


async def test_concurrent_callers_share_one_fetch_of_keys_and_the_next_waits():
    key = Key.of_secret("k")
    source, clock, asked = source_of([[key]])
    assert await asyncio.gather(*(source.refresh() for _ in range(20))) == [True] * 20
    assert (source.keys, asked) == ((key,), [0.0])
    clock[0] = 9.9
    assert await source.refresh() is False
    clock[0] = 10.0
    assert await source.refresh() is True
    assert asked == [0.0, 10.0]


async def test_keys_are_kept_while_their_issuer_is_unreachable_and_removed_when_it_withdraws_them():
    old, new = Key.of_secret("old"), Key.of_secret("new")
    source, _, _ = source_of([[old, new], KeysUnavailableError("down"), [new]], cooldown=0)
    removed = []
    source.on_removed = removed.append
    for known in ((old, new), (old, new), (new,)):
        await source.refresh()
        assert source.keys == known
    assert removed == [frozenset({old})]


@pytest.mark.parametrize("keys_left", [[], [{"kty": "OKP", "crv": "Ed448", "x": "AA", "kid": "new"}]])
async def test_keys_are_removed_when_their_issuer_publishes_no_usable_key(keys_left):
    place = Place(Response(200, SET))
    with serve(place) as served:
        source = KeySet(partial(fetch_set, f"{served.url}/keys"), cooldown=0)
        await source.refresh()
        known, removed = source.keys, []
        source.on_removed = removed.append
        place.reply = Response(200, {"keys": keys_left})
        assert await source.refresh()
    assert (len(known), source.keys, removed) == (1, (), [frozenset(known)])


async def test_a_key_is_removed_when_its_issuer_publishes_many_others():
    old, *new = [ed25519.Ed25519PrivateKey.generate() for _ in range(102)]
    published = [
        {**json.loads(OKPAlgorithm.to_jwk(key.public_key())), "kid": str(number)} for number, key in enumerate(new)
    ]
    place = Place(Response(200, {"keys": [{**json.loads(OKPAlgorithm.to_jwk(old.public_key())), "kid": "old"}]}))
    with serve(place) as served:
        found = Issuer(ISSUER, KeySet(partial(fetch_set, f"{served.url}/keys"), cooldown=0))
        verifying = TokenVerifier(issuers=[found], sole_gateway="shop")
        claims = {"iss": ISSUER, "sub": "alice", "exp": time.time() + 60}
        given = jwt.encode(claims, old, "EdDSA", {"kid": "old"})
        await verifying.identify(given)
        place.reply = Response(200, {"keys": published})
        assert await found.key_set.refresh()
    with pytest.raises(TokenRejectedError, match="kid 'old' is not among the 101 keys"):
        verifying.verify(given)
    assert verifying.verify(jwt.encode(claims, new[-1], "EdDSA", {"kid": "100"})).client_id == "alice"
    with pytest.raises(TokenRejectedError, match="101 keys of the issuer may have signed it; at most 64 are tried"):
        verifying.verify(jwt.encode(claims, new[-1], "EdDSA"))


@pytest.mark.parametrize(("known_kid", "kid"), [(None, "new"), (None, None), ("new", "new")])
async def test_a_new_key_is_fetched_although_its_kid_may_be_that_of_a_known_one(known_kid, kid):
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    old, new = Key.of_public(known_kid, other.public_key()), Key.of_public("new", private.public_key())
    source, _, _ = source_of([[old], [old, new]], cooldown=0)
    await source.refresh()
    verifying = TokenVerifier((), issuers=[Issuer(ISSUER, source)], sole_gateway="gw")
    payload = {"iss": ISSUER, "sub": "alice", "exp": time.time() + 60}
    signed = jwt.encode(payload, private, "RS256", {"kid": kid} if kid else None)
    assert (await verifying.identify(signed)).client_id == "alice"


async def test_a_new_key_is_fetched_for_each_section_with_the_tokens_issuer():
    old, private = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
    answers = [[Key.of_public("old", old.public_key())], [Key.of_public("new", private.public_key())]]
    sources = [source_of(answers, cooldown=0)[0] for _ in range(2)]
    issuers = [
        Issuer(ISSUER, each, audience=frozenset({aud})) for each, aud in zip(sources, ("one", "two"), strict=True)
    ]
    verifying = TokenVerifier((), issuers=issuers, sole_gateway="gw")
    await asyncio.gather(*(each.refresh() for each in sources))
    payload = {"iss": ISSUER, "sub": "alice", "exp": time.time() + 60, "aud": "two"}
    signed = jwt.encode(payload, private, "RS256", {"kid": "new"})
    assert (await verifying.identify(signed)).client_id == "alice"


async def test_a_cancelled_waiter_does_not_cancel_the_fetch():
    source, _, _ = source_of([[Key.of_secret("k")]])
    waiting = asyncio.create_task(source.refresh())
    await asyncio.sleep(0)
    waiting.cancel()
    assert await source.refresh() is True


class Place:
    """A server with one answer at `/keys` and a discovery document."""

    def __init__(self, answer, document=None):
        self.reply, self.document = answer, document

    def respond(self, request):
        return self.reply if request.path == "/keys" else Response(200, self.document)

    def now(self):
        return int(time.time() * 1000)


SET = {
    "keys": [
        json.loads(RSAAlgorithm.to_jwk(rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()))
    ]
}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Response(302, None, {"Location": "http://127.0.0.1:9/keys"}), "status 302"),
        (Response(500, SET), "status 500"),
        (Response(200, {**SET, "padding": "x" * 300_000}), "more than 262144 bytes"),
        (Response(200, "<html>"), "neither a JSON Web Key Set nor public keys"),
        (Response(200, [SET]), 'has no list "keys"'),
        (Response(200, {"keys": []}), "it has no key"),
    ],
)
def test_an_answer_that_is_not_a_key_set_is_not_used(answer, message):
    with serve(Place(answer)) as served, pytest.raises(KeysUnavailableError, match=message):
        fetch_set(f"{served.url}/keys")


def test_a_slow_answer_of_a_provider_times_out(monkeypatch):
    monkeypatch.setattr(keys, "FETCH_SECONDS", 0.5)
    ended = threading.Event()

    def drip(listener):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            with suppress(OSError):
                while not ended.wait(0.01):
                    connection.sendall(b" " * 64)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        dripping = threading.Thread(target=drip, args=(listener,))
        dripping.start()
        try:
            with pytest.raises(KeysUnavailableError, match="longer than"):
                fetch_set(f"http://127.0.0.1:{listener.getsockname()[1]}/keys")
        finally:
            ended.set()
            dripping.join()


def test_the_discovery_document_must_be_the_issuers_own():
    place = Place(Response(200, SET))
    with serve(place) as served:
        issuer, uri = served.url + "/", f"{served.url}/keys"
        for document, message in (
            ({"issuer": served.url, "jwks_uri": uri}, f"names the issuer '{served.url}', not"),
            ({"issuer": issuer, "jwks_uri": "http://8.8.8.8/keys"}, "use https://"),
            ({"issuer": issuer, "jwks_uri": "file:///etc/passwd"}, "it must be https://"),
            ({"issuer": issuer}, "it is missing"),
            ([], "names the issuer None"),
        ):
            place.document = document
            with pytest.raises(KeysUnavailableError, match=re.escape(message)):
                discover_set(issuer, partial(check_keys_url, "it"))
        place.document = {"issuer": issuer, "jwks_uri": uri}
        assert len(discover_set(issuer, partial(check_keys_url, "it"))) == 1


async def test_an_unexpected_error_does_not_stop_the_key_refreshes():
    key = Key.of_secret("k")
    source, _, _ = source_of([ValueError("unforeseen"), [key]], cooldown=0)
    assert [await source.refresh(), await source.refresh()] == [False, True]
    assert source.keys == (key,)
