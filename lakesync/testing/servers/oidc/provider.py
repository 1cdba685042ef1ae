"""The provider: its users, its keys, and the routes by which it gives tokens out."""

from __future__ import annotations

import json
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from lakesync.testing.servers.http import Answer, Request, serving
from lakesync.testing.servers.oidc.shapes import SHAPES, Shape, User

__all__ = ["OidcProvider", "SigningKey", "User", "providing"]


class SigningKey(NamedTuple):
    """A key that signs tokens."""

    kid: str
    algorithm: str
    private: Any

    @staticmethod
    def generate(algorithm: str) -> SigningKey:
        """Make a key of RS256, ES256 or EdDSA."""
        kid = secrets.token_urlsafe(16)
        if algorithm == "RS256":
            return SigningKey(kid, algorithm, rsa.generate_private_key(public_exponent=65537, key_size=2048))
        if algorithm == "ES256":
            return SigningKey(kid, algorithm, ec.generate_private_key(ec.SECP256R1()))
        return SigningKey(kid, algorithm, ed25519.Ed25519PrivateKey.generate())

    @property
    def public(self) -> dict[str, Any]:
        """Return its public part as the key set has it."""
        algorithms: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
        found: dict[str, Any] = algorithms[self.algorithm].to_jwk(self.private.public_key(), as_dict=True)
        found.pop("key_ops", None)
        return {**found, "kid": self.kid, "alg": self.algorithm, "use": "sig"}


@dataclass
class OidcProvider:
    """Answers as a vendor's server: discovery document, key set, sign-in and renewal. Times are this machine's."""

    shape: Shape
    url: str = ""
    """Where it listens, without a slash at the end."""
    lifetime: float | None = None
    """Seconds that a token is good for; None: as long as the vendor's are."""
    audience: str | None = None
    """In place of the one that the vendor has."""
    users: dict[str, User] = field(default_factory=dict)
    """By e-mail address."""
    down: bool = False
    """Whether every call is answered by 503."""
    keys: list[SigningKey] = field(default_factory=list)
    """In the key set; the last one signs."""
    calls: list[tuple[str, str, int]] = field(default_factory=list)
    """Method, path and status of every call so far."""
    _sessions: dict[str, User] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the first key."""
        if not self.keys:
            self.rotate()

    @property
    def issuer(self) -> str:
        """The `iss` of its tokens."""
        return self.url + self.shape.issuer_path

    def add_user(self, email: str, password: str = "correct horse", **claims: Any) -> User:  # noqa: S107 a test's
        """Sign a user up.

        Args:
            email: the address.
            password: for the sign-in.
            claims: what the operator says of the user; a token has it where the vendor puts such claims.
        """
        user = User(self.shape.user_id(), email, password, claims)
        self.users[email] = user
        return user

    def rotate(self) -> SigningKey:
        """Sign with a new key from now on; the older ones stay in the key set."""
        self.keys.append(SigningKey.generate(self.shape.algorithm))
        return self.keys[-1]

    def withdraw(self, kid: str) -> None:
        """Take a key out of the key set."""
        self.keys = [key for key in self.keys if key.kid != kid]

    def token(self, user: User, *, key: SigningKey | None = None, **changes: Any) -> str:
        """Return a token for a user.

        Args:
            user: a user.
            key: signs it; None: the newest one.
            changes: claims in place of those that the vendor's token has; None leaves one out.
        """
        key = key or self.keys[-1]
        now = int(time.time())
        lifetime = self.shape.lifetime if self.lifetime is None else self.lifetime
        claims = self.shape.claims(user, self.issuer, self.audience or self.shape.audience)
        claims = {"iss": self.issuer, "iat": now, "exp": now + lifetime, **claims, **changes}
        held = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(held, key.private, key.algorithm, {"kid": key.kid, **self.shape.header})

    def answer(self, request: Request) -> Answer:
        """The answer to a request."""
        if self.down:
            return Answer(503, {"error": "temporarily_unavailable"})
        place = request.path
        if (
            request.method == "GET"
            and place == self.shape.issuer_path.rstrip("/") + "/.well-known/openid-configuration"
        ):
            return Answer(200, self._discovery())
        if request.method == "GET" and place == self.shape.jwks_path:
            return Answer(200, {"keys": [*self.shape.other_keys, *(key.public for key in self.keys)]})
        if request.method == "POST":
            for path, route in self.shape.routes.items():
                if path == place or (path.endswith("/") and place.startswith(path)):
                    return route(self, request, _form(request))
        return Answer(404, {"error": "not_found", "error_description": f"{request.method} {place}"})

    def now(self) -> int:
        """Its time, in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def signed_in(self, email: str, password: str) -> User | None:
        """Return the user with this address and password."""
        user = self.users.get(email)
        return user if user is not None and secrets.compare_digest(user.password, password) else None

    def open_session(self, user: User) -> str:
        """Return what renews the tokens of a user, once."""
        name = uuid.uuid4().hex
        self._sessions[name] = user
        return name

    def session(self, name: str, *, keep: bool = False) -> User | None:
        """Return whose session it is."""
        return self._sessions.get(name) if keep else self._sessions.pop(name, None)

    def seconds(self) -> int:
        """How long tokens are good for."""
        return int(self.shape.lifetime if self.lifetime is None else self.lifetime)

    def _discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "jwks_uri": self.url + self.shape.jwks_path,
            "token_endpoint": self.url + self.shape.token_path,
            "authorization_endpoint": f"{self.url}/authorize",
            "response_types_supported": ["code", "id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self.shape.algorithm],
        }


@contextmanager
def providing(shape: str, **options: Any) -> Iterator[OidcProvider]:
    """A provider that listens on a free port until the block is left.

    Args:
        shape: `auth0`, `clerk`, `supabase`, `keycloak` or `firebase`.
        options: other fields of `OidcProvider`.
    """
    provider = OidcProvider(SHAPES[shape], **options)
    with serving(provider) as served:
        provider.url, provider.calls = served.url, served.calls
        yield provider


def _form(request: Request) -> Mapping[str, str]:
    """The fields of a body, as JSON or as a form."""
    if "json" in request.headers.get("content-type", ""):
        found = json.loads(request.body or b"{}")
        return {name: str(value) for name, value in found.items()} if isinstance(found, dict) else {}
    return {name: values[-1] for name, values in parse_qs(request.body.decode(), keep_blank_values=True).items()}
