"""A fake login provider: an OpenID Connect server with the routes and tokens of one of five vendors.

The vendors are Auth0 (access tokens of an API), Clerk (session tokens), Supabase Auth, Keycloak (access tokens of a
realm) and Firebase Authentication (ID tokens). The claims of Clerk, Supabase and Firebase were compared with the
vendors' documentation; nothing was compared with a real account. Tests of logins run a provider with `serve_oidc`.
`vendors` has what differs between the vendors. A provider publishes a key set (JWKS): the public keys with which tokens
are verified, each with an id (`kid`).
"""

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

from lakesync.testing.servers import Call, Request, Response, serve
from lakesync.testing.servers.oidc.vendors import VENDORS, User, Vendor

__all__ = ["VENDORS", "OidcProvider", "SigningKey", "User", "Vendor", "serve_oidc"]


class SigningKey(NamedTuple):
    """A key that signs tokens."""

    kid: str
    """The key's id in the key set and in the header of tokens."""
    algorithm: str
    """RS256, ES256 or EdDSA."""
    private: Any
    """The private key, an object of `cryptography`."""

    @staticmethod
    def generate(algorithm: str) -> SigningKey:
        """Generate a key.

        Args:
            algorithm: RS256, ES256 or EdDSA.
        """
        kid = secrets.token_urlsafe(16)
        if algorithm == "RS256":
            return SigningKey(kid, algorithm, rsa.generate_private_key(public_exponent=65537, key_size=2048))
        if algorithm == "ES256":
            return SigningKey(kid, algorithm, ec.generate_private_key(ec.SECP256R1()))
        return SigningKey(kid, algorithm, ed25519.Ed25519PrivateKey.generate())

    @property
    def public(self) -> dict[str, Any]:
        """The public key as a JSON Web Key, for the key set."""
        algorithms: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
        jwk: dict[str, Any] = algorithms[self.algorithm].to_jwk(self.private.public_key(), as_dict=True)
        jwk.pop("key_ops", None)
        return {**jwk, "kid": self.kid, "alg": self.algorithm, "use": "sig"}


@dataclass
class OidcProvider:
    """Behaves as a vendor's server: discovery document, key set, sign-in and token renewal. Uses the real clock."""

    vendor: Vendor
    url: str = ""
    """The provider's URL without a slash at the end; `serve_oidc` sets it."""
    lifetime: float | None = None
    """Seconds for which a token is valid; None: the vendor's default."""
    audience: str | None = None
    """The claim `aud` of tokens; None: the vendor's default."""
    users: dict[str, User] = field(default_factory=dict)
    """E-mail address → user."""
    down: bool = False
    """Whether the provider responds to every request with 503."""
    keys: list[SigningKey] = field(default_factory=list)
    """The keys in the key set. The last one signs new tokens."""
    calls: list[Call] = field(default_factory=list)
    """Every request so far."""
    _sessions: dict[str, User] = field(default_factory=dict)
    """Renewal code → user. A client exchanges the code for a new token when the old one expires."""

    def __post_init__(self) -> None:
        """Generate the first key, unless keys were given."""
        if not self.keys:
            self.rotate()

    @property
    def issuer(self) -> str:
        """The claim `iss` of tokens."""
        return self.url + self.vendor.issuer_path

    def add_user(self, email: str, password: str = "correct horse", **claims: Any) -> User:  # noqa: S107 a test's
        """Create a user.

        Args:
            email: the address with which the user signs in.
            password: the user's password.
            claims: custom claims about the user. Tokens contain them where the vendor puts custom claims.
        """
        user = User(self.vendor.user_id(), email, password, claims)
        self.users[email] = user
        return user

    def rotate(self) -> SigningKey:
        """Generate and return a new key, which signs from now on. Older keys stay in the key set."""
        self.keys.append(SigningKey.generate(self.vendor.algorithm))
        return self.keys[-1]

    def withdraw(self, kid: str) -> None:
        """Remove a key from the key set, so that its tokens cannot be verified."""
        self.keys = [key for key in self.keys if key.kid != kid]

    def token(self, user: User, *, key: SigningKey | None = None, **changes: Any) -> str:
        """Issue a token for a user.

        Args:
            user: the user.
            key: the key that signs; None for the newest.
            changes: claims that replace the vendor's; a claim with value None is left out.
        """
        key = key or self.keys[-1]
        now = int(time.time())
        lifetime = self.vendor.lifetime if self.lifetime is None else self.lifetime
        claims = self.vendor.claims(user, self.issuer, self.audience or self.vendor.audience)
        claims = {"iss": self.issuer, "iat": now, "exp": now + lifetime, **claims, **changes}
        present = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(present, key.private, key.algorithm, {"kid": key.kid, **self.vendor.header})

    def respond(self, request: Request) -> Response:
        """Respond to a request."""
        if self.down:
            return Response(503, {"error": "temporarily_unavailable"})
        discovery_path = self.vendor.issuer_path.rstrip("/") + "/.well-known/openid-configuration"
        if request.method == "GET" and request.path == discovery_path:
            return Response(200, self._discovery())
        if request.method == "GET" and request.path == self.vendor.jwks_path:
            return Response(200, {"keys": [*self.vendor.other_keys, *(key.public for key in self.keys)]})
        if request.method == "POST":
            for path, route in self.vendor.routes.items():
                if path == request.path or (path.endswith("/") and request.path.startswith(path)):
                    return route(self, request, _form(request))
        return Response(404, {"error": "not_found", "error_description": f"{request.method} {request.path}"})

    def now(self) -> int:
        """Return this machine's time in milliseconds since 1970, for the header `Date` of responses."""
        return time.time_ns() // 1_000_000

    def authenticate(self, email: str, password: str) -> User | None:
        """Return the user with this address and password; None if the address is unknown or the password wrong."""
        user = self.users.get(email)
        return user if user is not None and user.password == password else None

    def open_session(self, user: User) -> str:
        """Return a code with which the user's token can be renewed (a refresh token or session id)."""
        code = uuid.uuid4().hex
        self._sessions[code] = user
        return code

    def session(self, code: str, *, keep: bool = False) -> User | None:
        """Return the user of a renewal code; None if the code is unknown or was used before.

        Args:
            code: the renewal code.
            keep: whether the code stays valid after this call.
        """
        return self._sessions.get(code) if keep else self._sessions.pop(code, None)

    def seconds(self) -> int:
        """Return the lifetime of tokens in seconds."""
        return int(self.vendor.lifetime if self.lifetime is None else self.lifetime)

    def _discovery(self) -> dict[str, Any]:
        """Return the discovery document."""
        return {
            "issuer": self.issuer,
            "jwks_uri": self.url + self.vendor.jwks_path,
            "token_endpoint": self.url + self.vendor.token_path,
            "authorization_endpoint": f"{self.url}/authorize",
            "response_types_supported": ["code", "id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self.vendor.algorithm],
        }


@contextmanager
def serve_oidc(vendor: str, **options: Any) -> Iterator[OidcProvider]:
    """Run a provider on a free port until the block ends.

    Args:
        vendor: `auth0`, `clerk`, `supabase`, `keycloak` or `firebase`.
        options: other fields of `OidcProvider`.
    """
    provider = OidcProvider(VENDORS[vendor], **options)
    with serve(provider) as served:
        provider.url, provider.calls = served.url, served.calls
        yield provider


def _form(request: Request) -> Mapping[str, str]:
    """Return the fields of a request's body, which is JSON or a form."""
    if "json" in request.headers.get("content-type", ""):
        decoded = json.loads(request.body or b"{}")
        return {name: str(value) for name, value in decoded.items()} if isinstance(decoded, dict) else {}
    return {name: values[-1] for name, values in parse_qs(request.body.decode(), keep_blank_values=True).items()}
