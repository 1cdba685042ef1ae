"""The issuers whose tokens a gateway server accepts, and the meaning of the claims in their tokens.

An issuer signs tokens (JWTs): a login provider, the project's own backend, or the server itself with a secret. The
settings `[[gateway.issuers]]` and `jwt_secret` declare issuers. The server, `lakesync token inspect` and
`lakesync doctor` call `configured_issuers`; `TokenVerifier` and the checks of a token (`checks.py`) use the objects.

A *claim* is a field of a token, named by its path: `app_metadata.team` is the claim `team` in the object
`app_metadata`. A *gateway* is one app's stream of changes on the server; claims say which ones a client may use. *Sync
rules* decide by claims which rows a client sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakesync.auth.keys import (
    COOLDOWN_SECONDS,
    FILE_COOLDOWN_SECONDS,
    PUBLIC_ALGORITHMS,
    Key,
    KeySet,
    KeysUnavailableError,
    discover_set,
    fetch_set,
    read_keys,
)
from lakesync.model.errors import ConfigurationError
from lakesync.model.types import Claims
from lakesync.model.validation import check_keys_url

if TYPE_CHECKING:
    from lakesync.config import Config
    from lakesync.config.sections import Algorithm, DeclaredEnterRule, DeclaredIssuer

_MAX_DEPTH = 8
"""Levels of nested objects that a path can reach."""
MAX_PATHS = 256
"""Nested values of a token that get a path, at most, so that a cached token stays small. Further ones are ignored."""
MAX_PATH_CHARS = 256
"""A value whose path would be longer is ignored."""


@dataclass(frozen=True)
class Issuer:
    """An issuer: its keys, and what the claims of its tokens mean."""

    issuer: str | None
    """The `iss` of its tokens; None for the server's own secrets, whose tokens may have any `iss`."""
    key_set: KeySet
    algorithms: tuple[Algorithm, ...] = PUBLIC_ALGORITHMS
    """The algorithms with which its tokens may be signed."""
    audience: frozenset[str] | None = frozenset()
    """Values of `aud`, of which a token must have one. Empty: a token must have no `aud`. None: `aud` is ignored."""
    client_claim: str = "sub"
    """Path of the claim with the client id."""
    client_prefix: str = ""
    """The client id is this prefix followed by that claim, so that two issuers cannot name the same client."""
    gateway_claim: str | None = None
    """Path of the required claim with one gateway id or a list of them. None: the optional claim `gw`, with one id."""
    role_claim: str | None = None
    """Path of the claim with the role or roles; None: every token has the role `client`."""
    admin_roles: frozenset[str] = frozenset({"admin"})
    """A token with one of these roles has the role `admin`."""
    strict_roles: bool = False
    """Whether a token with a role other than `client` and `admin` is rejected. Otherwise the role means `client`."""
    enter: tuple[DeclaredEnterRule, ...] = ()
    """The entries that admit tokens to gateways. A token that names gateways (`gateway_claim`) may use those of them
    that an entry admits; another token may use all that an entry admits. Empty: the gateways that the token names."""
    require: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Path → values. A token must have one of the values in each of these claims."""

    @staticmethod
    def of_secrets(secrets: Sequence[str]) -> Issuer:
        """Return the issuer of the tokens that the server's own secrets sign: `jwt_secret`, `jwt_secret_previous`."""
        keys = [Key.of_secret(secret) for secret in secrets]
        return Issuer(
            None,
            KeySet(lambda: keys, keys, name="jwt_secret"),
            ("HS256",),
            audience=None,
            role_claim="role",
            strict_roles=True,
        )

    @property
    def is_refreshable(self) -> bool:
        """Whether its keys can change while the server runs: keys of a URL or a file, not a secret."""
        return "HS256" not in self.algorithms


def configured_issuers(config: Config) -> tuple[Issuer, ...]:
    """Return the issuers of `[[gateway.issuers]]`, in their order.

    Raises:
        ConfigurationError: a key file cannot be used.
    """
    return tuple(_make_issuer(section) for section in config.gateway.issuers)


def admits(rule: DeclaredEnterRule, claims: Mapping[str, Any]) -> bool:
    """Return whether an entry of an issuer's setting `enter` lets tokens with these claims use its gateway.

    Args:
        rule: the entry.
        claims: the token's claims, by path.
    """
    return rule.claim is None or not {*rule.values}.isdisjoint(string_values(claims.get(rule.claim)) or ())


def flatten_claims(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return path → value for every claim in a token's payload: objects, and the claims in them.

    The name of a claim may contain dots, such as Auth0's `https://example.com/team`; it is a path too. If a claim is
    named `a.b`, that path means this claim, not the claim `b` in the object `a`.

    Objects are visited level by level, so that claims of deep objects are the first to be left out above `MAX_PATHS`.

    Args:
        payload: the decoded payload.
    """
    claims: dict[str, Any] = dict(payload)
    max_claims = len(claims) + MAX_PATHS
    level: list[tuple[str, Mapping[str, Any]]] = [("", payload)]
    for _ in range(_MAX_DEPTH - 1):
        inner = [
            (f"{prefix}{name}.", value)
            for prefix, parent in level
            for name, value in parent.items()
            if isinstance(value, Mapping) and len(prefix) + len(name) < MAX_PATH_CHARS
        ]
        if not inner:
            break
        for prefix, parent in inner:
            for name, value in parent.items():
                if len(prefix) + len(name) <= MAX_PATH_CHARS and len(claims) < max_claims:
                    claims.setdefault(prefix + name, value)
        level = inner
    return claims


def string_values(value: Any) -> tuple[str, ...] | None:
    """Return the strings of a claim that is a string or a list of strings; None for any other type."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return None


def rule_claims(claims: Mapping[str, Any]) -> Claims:
    """Return the claims that sync rules can read, by path: strings and lists of strings."""
    return {path: value for path, value in claims.items() if string_values(value) is not None}


def _make_issuer(section: DeclaredIssuer) -> Issuer:
    """Return the issuer that a section declares.

    Its keys are a secret, in a file, at a URL, or at the URL that the issuer's discovery document names.
    """
    keys: Sequence[Key] = ()
    cooldown = COOLDOWN_SECONDS
    load: Callable[[], Sequence[Key]]
    if section.secret is not None:
        keys = [Key.of_secret(section.secret.get_secret_value())]
        load = partial(tuple, keys)
    elif section.keys is not None:
        path = Path(section.keys)
        load, cooldown = partial(read_keys, path), FILE_COOLDOWN_SECONDS
        try:
            keys = load()
        except KeysUnavailableError as error:
            raise ConfigurationError(
                f"keys of [[gateway.issuers]] cannot be used: {error}; name a file with a JSON Web Key Set, or with "
                "public keys in PEM"
            ) from error
    elif section.jwks_url is not None:
        load = partial(fetch_set, section.jwks_url)
    else:
        load = partial(discover_set, section.issuer, partial(check_keys_url, "it"))  # messages call the URL "it"
    return Issuer(
        section.issuer,
        KeySet(load, keys, name=section.issuer, cooldown=cooldown),
        section.algorithms,
        audience=frozenset(section.audience),
        client_claim=section.client_claim,
        client_prefix=section.client_prefix,
        gateway_claim=section.gateway_claim,
        role_claim=section.role_claim,
        admin_roles=frozenset(section.admin_roles),
        enter=section.enter,
        require={path: frozenset(values) for path, values in section.require.items()},
    )
