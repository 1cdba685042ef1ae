"""Parses, fetches, caches and refreshes the keys that verify the signatures of clients' tokens (JWTs).

An *issuer* signs tokens: a login provider, or the project's own backend. Its keys come from a JSON Web Key Set at a
URL, from a file, or from an HS256 secret. `issuers.py` creates a `KeySet` for each issuer; `TokenVerifier` refreshes
it every five minutes, and when no known key signed a token.

A token cannot supply a key or its location: its header `kid` only selects among the issuer's keys, and its headers
`jku`, `x5u`, `jwk` and `x5c` are ignored.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import jwt
import requests
import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from lakesync.config.sections import Algorithm
from lakesync.wire.http_sessions import no_auth

log = structlog.get_logger("gateway")

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
"""The supported algorithms of signatures."""
PUBLIC_ALGORITHMS: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
"""The supported algorithms whose keys are public; HS256 needs a shared secret."""

REFRESH_SECONDS = 300.0
"""Interval between two fetches. A key that the issuer no longer publishes stays valid for no longer than this."""
COOLDOWN_SECONDS = 10.0
"""Minimum time between two fetches, however many tokens no known key signed."""
FILE_COOLDOWN_SECONDS = 1.0
"""Minimum time between two reads of a key file."""
FETCH_SECONDS = 5.0
"""Time limit of a fetch."""
MAX_SET_BYTES = 256 << 10
"""Limit of a fetched document: 256 KiB, far more than providers publish."""
MAX_KEYS_TRIED = 64
"""A token that more keys of its issuer may have signed, because it has no `kid`, is rejected: each would be tried."""
MIN_RSA_BITS = 2048
"""Shorter RSA keys are rejected."""
_CHUNK_BYTES = 64
"""Bytes read before each check of the time limit; few, because a server may send slowly on purpose."""
_PEM = b"-----BEGIN PUBLIC KEY-----"
_PEM_END = b"-----END PUBLIC KEY-----"
_ALGORITHM_OF_KEY_TYPE = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}
"""A JSON Web Key's `kty` → the algorithm that its tokens are signed with."""


class KeysUnavailableError(Exception):
    """The keys of an issuer cannot be fetched or read, or none of them is usable."""


class NoUsableKeysError(KeysUnavailableError):
    """An issuer publishes a key set without a usable key, so it has withdrawn all of its keys."""


@dataclass(frozen=True)
class Key:
    """A key that verifies the signatures of one algorithm."""

    kid: str | None
    """The key's id; None if it has none: then it is tried for every token of its algorithm."""
    algorithm: Algorithm
    digest: str
    """SHA-256 of the key, which identifies it."""
    material: Any = field(compare=False, repr=False)
    """The secret, or a public key object of `cryptography`."""

    @staticmethod
    def of_secret(secret: str) -> Key:
        """Return the key of an HS256 secret."""
        return Key(None, "HS256", hashlib.sha256(secret.encode()).hexdigest(), secret)

    @staticmethod
    def of_public(kid: str | None, public: Any) -> Key:
        """Return the verification key of a public key.

        Args:
            kid: the key's id; None if it has none.
            public: a public key object of `cryptography`.

        Raises:
            KeysUnavailableError: the type is not supported, or the key is too short.
        """
        algorithm: Algorithm
        if isinstance(public, RSAPublicKey):
            algorithm = "RS256"
            if public.key_size < MIN_RSA_BITS:
                raise KeysUnavailableError(f"an RSA key has {public.key_size} bits, at least {MIN_RSA_BITS} are needed")
        elif isinstance(public, EllipticCurvePublicKey) and isinstance(public.curve, SECP256R1):
            algorithm = "ES256"
        elif isinstance(public, Ed25519PublicKey):
            algorithm = "EdDSA"
        else:
            raise KeysUnavailableError("a key is neither RSA, nor EC on the curve P-256, nor Ed25519")
        encoded = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return Key(kid, algorithm, hashlib.sha256(encoded).hexdigest(), public)


def parse_keys(content: bytes) -> tuple[Key, ...]:
    """Parse a JSON Web Key Set, or public keys in PEM.

    Keys of a set that are for encryption or another algorithm are ignored, because providers publish them too.

    Raises:
        NoUsableKeysError: a key set has no usable key.
        KeysUnavailableError: the content is neither.
    """
    keys = _parse_pem(content) if _PEM in content else _parse_key_set(content)
    if not keys:
        raise NoUsableKeysError("it has no key for RS256, ES256 or EdDSA")
    return tuple(keys)


class KeySet:
    """The cached keys of one issuer. Use it in the event loop's thread; only `load` runs in another."""

    def __init__(
        self,
        load: Callable[[], Sequence[Key]],
        keys: Sequence[Key] = (),
        *,
        name: str = "",
        cooldown: float = COOLDOWN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the cache; nothing is fetched yet.

        Args:
            load: fetches or reads the keys, in a worker thread; raises KeysUnavailableError.
            keys: the keys that are known at the start.
            name: the issuer's name, for the log.
            cooldown: minimum seconds between two fetches.
            clock: returns seconds of a monotonic clock.
        """
        self.load = load
        self.keys = tuple(keys)
        """The known keys, by which tokens are verified."""
        self.on_removed: Callable[[frozenset[Key]], None] = lambda _: None
        """Called with the keys that a refresh removed; `TokenVerifier` sets it, to reject their tokens."""
        self._name = name
        self._cooldown = cooldown
        self._clock = clock
        self._last_try: float | None = None
        """When the last fetch began, by `clock`."""
        self._loading: asyncio.Task[bool] | None = None
        """The fetch in progress."""

    async def refresh(self) -> bool:
        """Fetch the keys, or wait for a fetch that is in progress.

        If the fetch fails, the known keys stay valid, so that clients can go on during an outage of the issuer.

        Returns:
            Whether the keys were fetched; False if the fetch failed, or within the cooldown.
        """
        if self._loading is None:
            now = self._clock()
            if self._last_try is not None and now - self._last_try < self._cooldown:
                return False
            self._last_try = now
            self._loading = asyncio.create_task(self._refresh())
            self._loading.add_done_callback(self._loaded)
        return await asyncio.shield(self._loading)

    def _loaded(self, _: asyncio.Task[bool]) -> None:
        """Forget the fetch in progress, which has ended."""
        self._loading = None

    async def _refresh(self) -> bool:
        """Fetch the keys; for the result see `refresh`."""
        try:
            keys = tuple(await asyncio.wait_for(asyncio.to_thread(self.load), FETCH_SECONDS + 1))
        except NoUsableKeysError as error:  # not an outage: the issuer has withdrawn its keys
            log.warning("an issuer publishes no usable key", issuer=self._name, reason=str(error))
            keys = ()
        except Exception as error:  # the next refresh may succeed
            is_expected = isinstance(error, KeysUnavailableError)
            reason = str(error) if is_expected else f"no response within {FETCH_SECONDS:g} s ({type(error).__name__})"
            log.warning(
                "the keys of an issuer cannot be fetched", issuer=self._name, reason=reason, kept=len(self.keys)
            )
            return False
        removed = frozenset(self.keys) - frozenset(keys)
        self.keys = keys
        if removed:
            log.info("an issuer no longer publishes keys", issuer=self._name, kids=[key.kid for key in removed])
            self.on_removed(removed)
        return True


def fetch_set(url: str) -> tuple[Key, ...]:
    """Fetch a JSON Web Key Set.

    Raises:
        KeysUnavailableError: the response is late, an error or too large, or has no usable key.
    """
    try:
        return parse_keys(_get(url))
    except KeysUnavailableError as error:
        raise type(error)(f"{url}: {error}") from error


def discover_set(issuer: str, check_url: Callable[[str], str | None]) -> tuple[Key, ...]:
    """Fetch the keys that the discovery document of an issuer names.

    Args:
        issuer: the `iss` of its tokens.
        check_url: returns why the URL of the keys cannot be used; None if it can.

    Raises:
        KeysUnavailableError: as `fetch_set`, or the document belongs to another issuer.
    """
    url = issuer.rstrip("/") + "/.well-known/openid-configuration"
    try:
        document = json.loads(_get(url))
    except (ValueError, RecursionError) as error:
        raise KeysUnavailableError(f"{url} is not JSON; set jwks_url") from error
    except KeysUnavailableError as error:
        raise KeysUnavailableError(f"{url}: {error}") from error
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        named = document.get("issuer") if isinstance(document, dict) else None
        raise KeysUnavailableError(f"{url} names the issuer {named!r}, not {issuer!r}; correct the setting issuer")
    jwks_uri = document.get("jwks_uri")
    fault = check_url(jwks_uri) if isinstance(jwks_uri, str) else "it is missing"
    if fault is not None:
        raise KeysUnavailableError(f"the jwks_uri of {url} cannot be used: {fault}")
    return fetch_set(str(jwks_uri))


def read_keys(path: Path) -> tuple[Key, ...]:
    """Read the keys of a file.

    Raises:
        KeysUnavailableError: the file cannot be read, or has no usable key.
    """
    try:
        return parse_keys(path.read_bytes())
    except OSError as error:
        raise KeysUnavailableError(f"{path} cannot be read: {error.strerror}") from error
    except KeysUnavailableError as error:
        raise type(error)(f"{path}: {error}") from error


def _parse_pem(content: bytes) -> list[Key]:
    """Parse one or more public keys in PEM."""
    keys = []
    for part in content.split(_PEM)[1:]:
        block = _PEM + part.partition(_PEM_END)[0] + _PEM_END
        try:
            public = load_pem_public_key(block)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise KeysUnavailableError(f"a public key in PEM cannot be parsed: {error}") from error
        keys.append(Key.of_public(None, public))
    return keys


def _parse_key_set(content: bytes) -> list[Key]:
    """Parse a JSON Web Key Set."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise KeysUnavailableError("it is neither a JSON Web Key Set nor public keys in PEM") from error
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise KeysUnavailableError('the JSON has no list "keys": it is not a JSON Web Key Set')
    keys = []
    for entry in entries:
        algorithm = _ALGORITHM_OF_KEY_TYPE.get(str(entry.get("kty"))) if isinstance(entry, dict) else None
        if algorithm is None or entry.get("use", "sig") != "sig":
            continue
        if entry.get("alg", algorithm) not in ({"EdDSA", "Ed25519"} if algorithm == "EdDSA" else {algorithm}):
            continue
        kid = entry.get("kid")
        public = {name: value for name, value in entry.items() if name != "d"}  # `d` is the private part
        try:
            keys.append(Key.of_public(kid if isinstance(kid, str) else None, jwt.PyJWK(public, algorithm).key))
        except (jwt.PyJWTError, KeysUnavailableError, ValueError, TypeError, KeyError) as error:
            log.warning("a key of an issuer is not usable", kid=str(kid)[:100], reason=str(error)[:200])
    return keys


def _get(url: str) -> bytes:
    """Return the body of a response with status 200, without following redirects.

    Raises:
        KeysUnavailableError: the response is late, too large, or has another status.
    """
    deadline = time.monotonic() + FETCH_SECONDS
    body = bytearray()
    try:
        with requests.get(
            url,
            timeout=(FETCH_SECONDS, FETCH_SECONDS),
            allow_redirects=False,
            stream=True,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            auth=no_auth,  # otherwise requests would send a password from ~/.netrc
        ) as response:
            if response.status_code != requests.codes.ok:
                raise KeysUnavailableError(f"the response has status {response.status_code}")
            for chunk in response.iter_content(_CHUNK_BYTES):
                body += chunk
                if len(body) > MAX_SET_BYTES:
                    raise KeysUnavailableError(f"the response has more than {MAX_SET_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise KeysUnavailableError(f"the response takes longer than {FETCH_SECONDS:g} s")
    except requests.RequestException as error:
        raise KeysUnavailableError(f"it does not respond ({type(error).__name__})") from error
    return bytes(body)
