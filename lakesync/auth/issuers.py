"""The issuers that a gateway trusts, from `[[gateway.issuers]]` and `jwt_secret`, and the meaning of their claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakesync.auth.claims import string_values
from lakesync.auth.keys import (
    COOLDOWN_SECONDS,
    FILE_COOLDOWN_SECONDS,
    PUBLIC_ALGORITHMS,
    Algorithm,
    Key,
    KeySet,
    discover_set,
    fetch_set,
    load_key_file,
    read_keys,
)
from lakesync.model.validation import check_keys_url

if TYPE_CHECKING:
    from lakesync.config import Config
    from lakesync.config.sections import DeclaredIssuer


@dataclass(frozen=True)
class EnterRule:
    """An entry of `enter`: a gateway that admits every token of an issuer, or those with a value in a claim."""

    gateway: str
    claim: str | None = None
    values: frozenset[str] = frozenset()

    def admits(self, claims: Mapping[str, Any]) -> bool:
        """Return whether a token with these claims, by path, may enter."""
        return self.claim is None or not self.values.isdisjoint(string_values(claims.get(self.claim)) or ())


@dataclass(frozen=True)
class Issuer:
    """An issuer: its keys, and what the claims of its tokens mean."""

    issuer: str | None
    """The `iss` of its tokens; None for the server's own secrets, whose tokens may have any."""
    key_set: KeySet
    algorithms: tuple[Algorithm, ...] = PUBLIC_ALGORITHMS
    audience: frozenset[str] | None = frozenset()
    """Accepted values of `aud`. Empty: tokens must have no `aud`. None: it is not checked."""
    client_claim: str = "sub"
    client_prefix: str = ""
    gateway_claim: str | None = None
    """Path of the required claim that names the gateways; None: `gw`, which is optional."""
    role_claim: str | None = None
    """Path of the roles; None: every token has the role `client`."""
    admin_roles: frozenset[str] = frozenset({"admin"})
    strict_roles: bool = False
    """Whether an unknown role is rejected instead of treated as `client`."""
    enter: tuple[EnterRule, ...] = ()
    require: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Path → accepted values, of which a token must have one."""

    @staticmethod
    def of_secrets(secrets: Sequence[str]) -> Issuer:
        """Return the issuer of `jwt_secret` and `jwt_secret_previous`."""
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
    return tuple(_configured(section) for section in config.gateway.issuers)


def _configured(section: DeclaredIssuer) -> Issuer:
    keys: Sequence[Key] = ()
    cooldown = COOLDOWN_SECONDS
    load: Callable[[], Sequence[Key]]
    if section.secret is not None:
        keys = [Key.of_secret(section.secret.get_secret_value())]
        load = partial(tuple, keys)
    elif section.keys is not None:
        path = Path(section.keys)
        keys, load, cooldown = load_key_file(path), partial(read_keys, path), FILE_COOLDOWN_SECONDS
    elif section.jwks_url is not None:
        load = partial(fetch_set, section.jwks_url)
    else:
        load = partial(discover_set, section.issuer, partial(check_keys_url, "it"))
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
        enter=tuple(EnterRule(rule.gateway, rule.claim, frozenset(rule.values)) for rule in section.enter),
        require={path: frozenset(values) for path, values in section.require.items()},
    )
