"""The tokens, routes and errors of each login vendor that `OidcProvider` can imitate.

Each section has functions for the claims of the vendor's tokens and for its routes. `VENDORS` at the end refers to
them. `OidcProvider` adds the claims `iss`, `iat` and `exp`.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lakesync.testing.servers import Request, Response


@dataclass(frozen=True)
class User:
    """A user who can sign in."""

    id: str
    """The claim `sub` of tokens."""
    email: str
    password: str
    claims: Mapping[str, Any]
    """Custom claims."""


class Provider(Protocol):
    """The methods of `OidcProvider` that a vendor's routes call."""

    def token(self, user: User) -> str:
        """Return a token for a user."""

    def authenticate(self, email: str, password: str) -> User | None:
        """Return the user with this address and password; None if they are wrong."""

    def open_session(self, user: User) -> str:
        """Return a code with which the user's token can be renewed."""

    def session(self, code: str, *, keep: bool = False) -> User | None:
        """Return the user of a renewal code, which is valid once unless `keep` is set; None if it is not valid."""

    def seconds(self) -> int:
        """Return the lifetime of tokens, in seconds."""


Route = Callable[[Provider, Request, Mapping[str, str]], Response]
"""Responds to a request whose body has the given fields."""


@dataclass(frozen=True)
class Vendor:
    """A vendor's tokens and routes."""

    name: str
    issuer_path: str
    """The path of the claim `iss`, which is a URL."""
    jwks_path: str
    """Path of the key set."""
    token_path: str
    """Path of the token endpoint in the discovery document."""
    algorithm: str
    """Algorithm of signatures: RS256 or ES256."""
    lifetime: float
    """Seconds for which a token is valid."""
    audience: str
    """The default audience of tokens."""
    user_id: Callable[[], str]
    """Returns a new user id in the vendor's format."""
    claims: Callable[[User, str, str], dict[str, Any]]
    """Returns a token's claims, without `iss`, `iat` and `exp`, for a user, an issuer and an audience."""
    routes: Mapping[str, Route]
    """Path → route for POST requests. A path that ends with a slash also matches every longer path."""
    header: Mapping[str, str] = field(default_factory=dict)
    """Additional fields of a token's header."""
    other_keys: Sequence[Mapping[str, str]] = ()
    """Keys in the key set that do not sign tokens."""


def _user_of(provider: Provider, form: Mapping[str, str], address_field: str, *, renews: bool) -> User | None:
    """Return the user who requests a token; None if the credentials are wrong.

    Args:
        provider: the provider.
        form: the fields of the request.
        address_field: the field with the e-mail address, beside `password`.
        renews: whether the request has a renewal code (`refresh_token`) instead of address and password.
    """
    if renews:
        return provider.session(form.get("refresh_token", ""))
    return provider.authenticate(form.get(address_field, ""), form.get("password", ""))


# -- Auth0 ---------------------------------------------------------------------------------------------------------

AUTH0_NAMESPACE = "https://lakesync.example.com/"
"""Prefix of custom claims. Auth0 drops custom claims without such a prefix from the access tokens of an API."""


def _auth0_claims(user: User, issuer: str, audience: str) -> dict[str, Any]:
    return {
        **{AUTH0_NAMESPACE + name: value for name, value in user.claims.items()},
        "sub": user.id,
        "aud": [audience, f"{issuer}userinfo"],
        "azp": "tGz5DpVqlakesyncSPAclient0Xy",
        "scope": "openid profile email offline_access",
        "gty": "password",
    }


def _auth0_token(provider: Provider, _: Request, form: Mapping[str, str]) -> Response:
    renews = form.get("grant_type") == "refresh_token"
    user = _user_of(provider, form, "username", renews=renews)
    if user is None:
        fault = "Unknown or invalid refresh token." if renews else "Wrong email or password."
        return Response(403, {"error": "invalid_grant", "error_description": fault})
    return Response(
        200,
        {
            "access_token": provider.token(user),
            "refresh_token": provider.open_session(user),
            "scope": "openid profile email offline_access",
            "expires_in": provider.seconds(),
            "token_type": "Bearer",
        },
    )


# -- Clerk ---------------------------------------------------------------------------------------------------------


def _clerk_claims(user: User, _: str, audience: str) -> dict[str, Any]:
    now = int(time.time())
    return {
        **user.claims,
        "azp": audience,
        "fva": [0, -1],
        "jti": secrets.token_hex(10),
        "nbf": now - 10,
        "sid": f"sess_{secrets.token_hex(13)}",
        "sts": "active",
        "sub": user.id,
        "v": 2,
    }


def _clerk_sign_in(provider: Provider, _: Request, form: Mapping[str, str]) -> Response:
    user = provider.authenticate(form.get("identifier", ""), form.get("password", ""))
    if user is None:
        error = {
            "code": "form_password_incorrect",
            "message": "Password is incorrect. Try again, or use another method.",
        }
        return Response(422, {"errors": [error]})
    return Response(200, {"response": {"status": "complete", "created_session_id": provider.open_session(user)}})


def _clerk_token(provider: Provider, request: Request, _: Mapping[str, str]) -> Response:
    user = provider.session(request.path.split("/")[4], keep=True)
    if user is None:
        return Response(404, {"errors": [{"code": "resource_not_found", "message": "Session not found"}]})
    return Response(200, {"jwt": provider.token(user), "object": "token"})


# -- Supabase ------------------------------------------------------------------------------------------------------


def _supabase_claims(user: User, _: str, audience: str) -> dict[str, Any]:
    now = int(time.time())
    return {
        "aal": "aal1",
        "amr": [{"method": "password", "timestamp": now}],
        "app_metadata": {"provider": "email", "providers": ["email"], **user.claims},
        "aud": audience,
        "email": user.email,
        "is_anonymous": False,
        "phone": "",
        "role": "authenticated",
        "session_id": str(uuid.uuid4()),
        "sub": user.id,
        "user_metadata": {"email": user.email, "email_verified": True},
    }


def _supabase_token(provider: Provider, request: Request, form: Mapping[str, str]) -> Response:
    renews = request.query.get("grant_type") == "refresh_token"
    user = _user_of(provider, form, "email", renews=renews)
    if user is None:
        fault = {"error_code": "invalid_credentials", "msg": "Invalid login credentials"}
        if renews:
            fault = {"error_code": "refresh_token_not_found", "msg": "Invalid Refresh Token: Refresh Token Not Found"}
        return Response(400, {"code": 400, **fault})
    return Response(
        200,
        {
            "access_token": provider.token(user),
            "token_type": "bearer",
            "expires_in": provider.seconds(),
            "expires_at": int(time.time()) + provider.seconds(),
            "refresh_token": provider.open_session(user),
            "user": {"id": user.id, "aud": "authenticated", "role": "authenticated", "email": user.email},
        },
    )


# -- Keycloak ------------------------------------------------------------------------------------------------------

KEYCLOAK_REALM = "/realms/shop"
"""The path of the realm, in which Keycloak has its users."""
_KEYCLOAK_TOKEN = f"{KEYCLOAK_REALM}/protocol/openid-connect/token"
_ENCRYPTION_KEY = {
    "kid": "encryption-not-signing",
    "kty": "RSA",
    "alg": "RSA-OAEP",
    "use": "enc",
    "n": "u0pXb8Gd3nC0p2jS3mJm3pKzqf2rR1mKpQ",
    "e": "AQAB",
}
"""A key in Keycloak's key set that signs no tokens, which verifiers must ignore."""


def _keycloak_claims(user: User, _: str, audience: str) -> dict[str, Any]:
    roles = list(user.claims.get("roles", ()))
    return {
        **{name: value for name, value in user.claims.items() if name != "roles"},
        "jti": str(uuid.uuid4()),
        "aud": [audience, "account"],
        "sub": user.id,
        "typ": "Bearer",
        "azp": "notes-app",
        "sid": str(uuid.uuid4()),
        "acr": "1",
        "allowed-origins": ["https://app.example.com"],
        "realm_access": {"roles": ["offline_access", "uma_authorization", "default-roles-shop", *roles]},
        "resource_access": {"account": {"roles": ["manage-account", "view-profile"]}},
        "scope": "openid email profile",
        "email_verified": True,
        "preferred_username": user.email.partition("@")[0],
        "email": user.email,
    }


def _keycloak_token(provider: Provider, _: Request, form: Mapping[str, str]) -> Response:
    renews = form.get("grant_type") == "refresh_token"
    user = _user_of(provider, form, "username", renews=renews)
    if user is None:
        status, fault = (400, "Token is not active") if renews else (401, "Invalid user credentials")
        return Response(status, {"error": "invalid_grant", "error_description": fault})
    return Response(
        200,
        {
            "access_token": provider.token(user),
            "expires_in": provider.seconds(),
            "refresh_expires_in": 1800,
            "refresh_token": provider.open_session(user),
            "token_type": "Bearer",
            "not-before-policy": 0,
            "session_state": str(uuid.uuid4()),
            "scope": "openid email profile",
        },
    )


# -- Firebase ------------------------------------------------------------------------------------------------------

FIREBASE_PROJECT = "shop-4711"
"""The project's id, which is the audience of its tokens and the end of their issuer."""
_IDENTITY = "/identitytoolkit.googleapis.com/v1/accounts:signInWithPassword"
_SECURE_TOKEN = "/securetoken.googleapis.com/v1/token"  # noqa: S105 a path


def _firebase_claims(user: User, _: str, audience: str) -> dict[str, Any]:
    return {
        **user.claims,
        "aud": audience,
        "auth_time": int(time.time()),
        "user_id": user.id,
        "sub": user.id,
        "email": user.email,
        "email_verified": False,
        "firebase": {"identities": {"email": [user.email]}, "sign_in_provider": "password"},
    }


def _firebase_sign_in(provider: Provider, _: Request, form: Mapping[str, str]) -> Response:
    user = provider.authenticate(form.get("email", ""), form.get("password", ""))
    if user is None:
        return Response(400, {"error": {"code": 400, "message": "INVALID_LOGIN_CREDENTIALS", "errors": []}})
    return Response(
        200,
        {
            "kind": "identitytoolkit#VerifyPasswordResponse",
            "localId": user.id,
            "email": user.email,
            "idToken": provider.token(user),
            "refreshToken": provider.open_session(user),
            "expiresIn": str(provider.seconds()),
        },
    )


def _firebase_renew(provider: Provider, _: Request, form: Mapping[str, str]) -> Response:
    user = provider.session(form.get("refresh_token", ""), keep=True)
    if user is None:
        return Response(400, {"error": {"code": 400, "message": "INVALID_REFRESH_TOKEN", "status": "INVALID_ARGUMENT"}})
    token = provider.token(user)
    return Response(
        200,
        {
            "access_token": token,
            "id_token": token,
            "expires_in": str(provider.seconds()),
            "token_type": "Bearer",
            "refresh_token": form["refresh_token"],
            "user_id": user.id,
            "project_id": "471147114711",
        },
    )


VENDORS: dict[str, Vendor] = {
    vendor.name: vendor
    for vendor in (
        Vendor(
            "auth0",
            issuer_path="/",
            jwks_path="/.well-known/jwks.json",
            token_path="/oauth/token",  # noqa: S106 a path
            algorithm="RS256",
            lifetime=86_400,
            audience="https://sync.example.com",
            user_id=lambda: f"auth0|{secrets.token_hex(12)}",
            claims=_auth0_claims,
            routes={"/oauth/token": _auth0_token},
        ),
        Vendor(
            "clerk",
            issuer_path="",
            jwks_path="/.well-known/jwks.json",
            token_path="/oauth/token",  # noqa: S106 a path
            algorithm="RS256",
            lifetime=60,
            audience="https://app.example.com",
            user_id=lambda: f"user_{secrets.token_hex(13)}",
            claims=_clerk_claims,
            routes={"/v1/client/sign_ins": _clerk_sign_in, "/v1/client/sessions/": _clerk_token},
            header={"cat": "cl_B7d4PD111AAA"},
        ),
        Vendor(
            "supabase",
            issuer_path="/auth/v1",
            jwks_path="/auth/v1/.well-known/jwks.json",
            token_path="/auth/v1/token",  # noqa: S106 a path
            algorithm="ES256",
            lifetime=3600,
            audience="authenticated",
            user_id=lambda: str(uuid.uuid4()),
            claims=_supabase_claims,
            routes={"/auth/v1/token": _supabase_token},
        ),
        Vendor(
            "keycloak",
            issuer_path=KEYCLOAK_REALM,
            jwks_path=f"{KEYCLOAK_REALM}/protocol/openid-connect/certs",
            token_path=_KEYCLOAK_TOKEN,
            algorithm="RS256",
            lifetime=300,
            audience="lakesync",
            user_id=lambda: str(uuid.uuid4()),
            claims=_keycloak_claims,
            routes={_KEYCLOAK_TOKEN: _keycloak_token},
            other_keys=(_ENCRYPTION_KEY,),
        ),
        Vendor(
            "firebase",
            issuer_path=f"/{FIREBASE_PROJECT}",
            jwks_path="/service_accounts/v1/jwk/securetoken@system.gserviceaccount.com",
            token_path=_SECURE_TOKEN,
            algorithm="RS256",
            lifetime=3600,
            audience=FIREBASE_PROJECT,
            user_id=lambda: secrets.token_urlsafe(21),
            claims=_firebase_claims,
            routes={_IDENTITY: _firebase_sign_in, _SECURE_TOKEN: _firebase_renew},
        ),
    )
}
