"""The public keys of issuers: how they are read, fetched and refreshed.

Keys come from a JSON Web Key Set behind a URL, from a file, or are a secret of HS256. Nothing that a token says leads
to a key: its `kid` is compared with those of the issuer's keys, and its `jku`, `x5u`, `jwk` and `x5c` are not read.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import jwt
import requests
import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from lakesync.model.errors import ConfigurationError

log = structlog.get_logger("gateway")

Algorithm = Literal["RS256", "ES256", "EdDSA", "HS256"]
PUBLIC_ALGORITHMS: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

REFRESH_SECONDS = 300.0
"""How long keys are used before they are fetched again: a key that an issuer has withdrawn is good for no longer."""
COOLDOWN_SECONDS = 10.0
"""The least time between two fetches, however many tokens name a key that nobody knows."""
FILE_COOLDOWN_SECONDS = 1.0
"""The same for a file of keys, which is nobody's server."""
FETCH_SECONDS = 5.0
"""How long a fetch may take."""
MAX_SET_BYTES = 256 << 10
MAX_KEYS = 64
MIN_RSA_BITS = 2048
_PIECE_BYTES = 64
"""Read at once, so that an answer which drips is given up in time."""
_PEM = b"-----BEGIN PUBLIC KEY-----"
_PEM_END = b"-----END PUBLIC KEY-----"
_KINDS = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}


class KeysUnavailableError(Exception):
    """The keys of an issuer could not be fetched, or none of them can be used."""


@dataclass(frozen=True)
class Key:
    """A key that signatures are verified with, for one algorithm."""

    kid: str | None
    """None for a key that has no name: it is tried for every token of its algorithm."""
    algorithm: Algorithm
    digest: str
    """Of the key itself, by which two keys are told apart."""
    material: Any = field(compare=False, repr=False)

    @staticmethod
    def of_secret(secret: str) -> Key:
        """Return the key of a secret of HS256."""
        return Key(None, "HS256", hashlib.sha256(secret.encode()).hexdigest(), secret)

    @staticmethod
    def of_public(kid: str | None, public: Any) -> Key:
        """Return the key of a public key object of `cryptography`.

        Raises:
            KeysUnavailableError: it is of a kind that is not supported, or too short.
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
            raise KeysUnavailableError("a key is neither RSA nor EC of the curve P-256 nor Ed25519")
        encoded = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return Key(kid, algorithm, hashlib.sha256(encoded).hexdigest(), public)


def parse_keys(content: bytes) -> tuple[Key, ...]:
    """Return the keys of a JSON Web Key Set, or of a file of public keys in PEM.

    Keys of a set that do not sign tokens, or by other algorithms, are left out: providers publish both.

    Raises:
        KeysUnavailableError: it is neither, or has no key that can be used.
    """
    found = _pem_keys(content) if _PEM in content else _set_keys(content)
    if not found:
        raise KeysUnavailableError("there is no key of RS256, ES256 or EdDSA")
    if len(found) > MAX_KEYS:
        raise KeysUnavailableError(f"there are {len(found)} keys, at most {MAX_KEYS} are taken")
    return tuple(found)


def _pem_keys(content: bytes) -> list[Key]:
    found = []
    for part in content.split(_PEM)[1:]:
        block = _PEM + part.partition(_PEM_END)[0] + _PEM_END
        try:
            public = load_pem_public_key(block)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise KeysUnavailableError(f"a public key in PEM cannot be read: {error}") from error
        found.append(Key.of_public(None, public))
    return found


def _set_keys(content: bytes) -> list[Key]:
    try:
        told = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise KeysUnavailableError("it is neither a JSON Web Key Set nor public keys in PEM") from error
    entries = told.get("keys") if isinstance(told, dict) else None
    if not isinstance(entries, list):
        raise KeysUnavailableError('the JSON has no list "keys": it is not a JSON Web Key Set')
    found = []
    for entry in entries:
        algorithm = _KINDS.get(str(entry.get("kty"))) if isinstance(entry, dict) else None
        if algorithm is None or entry.get("use", "sig") != "sig":
            continue
        if entry.get("alg", algorithm) not in ({"EdDSA", "Ed25519"} if algorithm == "EdDSA" else {algorithm}):
            continue
        kid = entry.get("kid")
        public = {name: value for name, value in entry.items() if name != "d"}
        try:
            found.append(Key.of_public(kid if isinstance(kid, str) else None, jwt.PyJWK(public, algorithm).key))
        except (jwt.PyJWTError, KeysUnavailableError, ValueError, TypeError, KeyError) as error:
            log.warning("a key of an issuer cannot be used", kid=str(kid)[:100], reason=str(error)[:200])
    return found


class KeySource:
    """The keys of one issuer. Belongs to the event loop's thread, except `load`."""

    def __init__(
        self,
        load: Callable[[], Sequence[Key]],
        keys: Sequence[Key] = (),
        *,
        name: str = "",
        cooldown: float = COOLDOWN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is fetched yet.

        Args:
            load: fetches or reads the keys, in a thread; raises KeysUnavailableError.
            keys: known from the start.
            name: the issuer, for the log.
            cooldown: seconds, the least time between two fetches.
            clock: seconds of a clock that only goes forward.
        """
        self.load = load
        self.keys = tuple(keys)
        self.on_removed: Callable[[frozenset[Key]], None] = _ignore
        """Called with the keys that a refresh has removed."""
        self._name = name
        self._cooldown = cooldown
        self._clock = clock
        self._tried: float | None = None
        self._loading: asyncio.Task[bool] | None = None

    async def refresh(self) -> bool:
        """Fetch the keys, or join the fetch that is under way; whether the keys were fetched just now.

        Keys that are known stay where the issuer does not answer. So its outage ends no session.
        """
        if self._loading is None:
            now = self._clock()
            if self._tried is not None and now - self._tried < self._cooldown:
                return False
            self._tried = now
            self._loading = asyncio.create_task(self._refresh())
            self._loading.add_done_callback(self._loaded)
        return await asyncio.shield(self._loading)

    def _loaded(self, _: asyncio.Task[bool]) -> None:
        self._loading = None

    async def _refresh(self) -> bool:
        try:
            found = tuple(await asyncio.wait_for(asyncio.to_thread(self.load), FETCH_SECONDS + 1))
        except Exception as error:  # whatever it is, the next refresh may succeed
            known = isinstance(error, KeysUnavailableError)
            reason = str(error) if known else f"no answer within {FETCH_SECONDS:g} s ({type(error).__name__})"
            log.warning(
                "the keys of an issuer cannot be fetched", issuer=self._name, reason=reason, kept=len(self.keys)
            )
            return False
        removed = frozenset(self.keys) - frozenset(found)
        self.keys = found
        if removed:
            log.info("an issuer has withdrawn keys", issuer=self._name, kids=[key.kid for key in removed])
            self.on_removed(removed)
        return True


def fetch_set(url: str) -> tuple[Key, ...]:
    """Fetch a JSON Web Key Set.

    Raises:
        KeysUnavailableError: it does not come in time, is too large, or has no key that can be used.
    """
    try:
        return parse_keys(_get(url))
    except KeysUnavailableError as error:
        raise KeysUnavailableError(f"{url}: {error}") from error


def discover_set(issuer: str, check_url: Callable[[str], str | None]) -> tuple[Key, ...]:
    """Fetch the keys that an issuer's discovery document names.

    Args:
        issuer: as its tokens have it.
        check_url: what is wrong with the address of the keys; None where nothing is.

    Raises:
        KeysUnavailableError: as `fetch_set`, or the document is another issuer's.
    """
    url = issuer.rstrip("/") + "/.well-known/openid-configuration"
    try:
        told = json.loads(_get(url))
    except (ValueError, RecursionError) as error:
        raise KeysUnavailableError(f"{url} is not JSON: set jwks_url") from error
    except KeysUnavailableError as error:
        raise KeysUnavailableError(f"{url}: {error}") from error
    if not isinstance(told, dict) or told.get("issuer") != issuer:
        named = told.get("issuer") if isinstance(told, dict) else None
        raise KeysUnavailableError(f"{url} is of the issuer {named!r}, not of {issuer!r}: set issuer to the former")
    place = told.get("jwks_uri")
    fault = check_url(place) if isinstance(place, str) else "it is not there"
    if fault is not None:
        raise KeysUnavailableError(f"the jwks_uri of {url} cannot be used: {fault}")
    return fetch_set(str(place))


def read_keys(path: Path) -> tuple[Key, ...]:
    """Read the keys of a file.

    Raises:
        KeysUnavailableError: it cannot be read, or has no key that can be used.
    """
    try:
        return parse_keys(path.read_bytes())
    except OSError as error:
        raise KeysUnavailableError(f"{path} cannot be read: {error.strerror}") from error
    except KeysUnavailableError as error:
        raise KeysUnavailableError(f"{path}: {error}") from error


def keys_at_start(path: Path) -> tuple[Key, ...]:
    """Read the keys of a file that the settings name.

    Raises:
        ConfigurationError: it cannot be used.
    """
    try:
        return read_keys(path)
    except KeysUnavailableError as error:
        raise ConfigurationError(f"keys of [[gateway.issuers]]: {error}") from error


def _get(url: str) -> bytes:
    until = time.monotonic() + FETCH_SECONDS
    body = bytearray()
    try:
        with requests.get(
            url,
            timeout=(FETCH_SECONDS, FETCH_SECONDS),
            allow_redirects=False,
            stream=True,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        ) as answer:
            if answer.status_code != requests.codes.ok:
                raise KeysUnavailableError(f"the answer is {answer.status_code}")
            for piece in answer.iter_content(_PIECE_BYTES):
                body += piece
                if len(body) > MAX_SET_BYTES:
                    raise KeysUnavailableError(f"the answer has more than {MAX_SET_BYTES} bytes")
                if time.monotonic() > until:
                    raise KeysUnavailableError(f"the answer takes longer than {FETCH_SECONDS:g} s")
    except requests.RequestException as error:
        raise KeysUnavailableError(f"there is no answer: {type(error).__name__}") from error
    return bytes(body)


def _ignore(_: frozenset[Key]) -> None:
    """Nobody is interested."""
