"""The environment variables of each service of `lakesync up`, which contain only the secrets that the service uses.

A service is a process: the gateway, Spark, or a part of Dagster. `services` calls `environment_of` for each. Services
that read the configuration get the settings as `LAKESYNC_*` variables, without the secrets that only others use. A
secret may also be in a variable of any other name, because a setting can refer to it by `env:NAME`. So every inherited
variable is removed whose value contains a secret that only other services use.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, SecretStr

from lakesync.cli.up.dagster_home import STORAGE_VARIABLE
from lakesync.config import Config
from lakesync.model.secrets import without_password

_SECRETS_OF = {
    "gateway": frozenset(
        {
            *("jwt_secret", "jwt_secret_previous", "service_token", "metrics_token"),
            *("secret_key", "secret_key_previous", "gateway.issuers"),
        }
    ),
    "code_server": frozenset({"service_token", "dagster.alert_secret"}),
    "runs": frozenset({"service_token", "secret_key", "secret_key_previous", "spark.token"}),
}
"""Service that reads the configuration → the secrets that it uses. Other services get their settings as arguments."""
_OPEN_CONNECTORS = frozenset({"gateway", "runs"})
"""Services that open connectors, whose secrets may be in variables."""
_OPEN_STORAGE = frozenset({"code_server", "dagster", "daemon", "runs", "recovery"})
"""Services that open Dagster's storage, by the reference in `dagster.yaml`."""
_PREFIX = "LAKESYNC_"
"""The first characters of the variables that are settings."""
_UNIQUE_CHARS = 16
"""A secret of at least this length is not part of another variable's value by chance."""


def environment_of(roles: Collection[str], config: Config, inherited: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes to the variables that a service inherits; None removes a variable.

    Args:
        roles: the service's name, and the names of services whose work it also does, as in `_SECRETS_OF`.
        config: the settings, with all ports and secrets.
        inherited: the variables of this process, which its children inherit.
    """
    reads_settings = any(role in _SECRETS_OF for role in roles)
    allowed = {name for role in roles for name in _SECRETS_OF.get(role, ())}
    storage = config.dagster.storage_url if not _OPEN_STORAGE.isdisjoint(roles) else None
    secrets = list(_secrets(config))
    own_secrets = {value for name, value in secrets if name in allowed}
    if storage is not None:
        own_secrets.add(storage.get_secret_value())
    others_secrets = {value for _, value in secrets if value} - own_secrets
    if not reads_settings:
        others_secrets.update(_urls_with_password(config))
    removed = {
        name
        for name, value in inherited.items()
        if name.startswith(_PREFIX)
        or any(value == secret or (len(secret) >= _UNIQUE_CHARS and secret in value) for secret in others_secrets)
        or (_OPEN_CONNECTORS.isdisjoint(roles) and _is_connector_secret(name, config))
    }
    changes: dict[str, str | None] = dict.fromkeys(removed)
    if reads_settings:
        changes |= _without_settings(config, frozenset(name for name, _ in secrets) - allowed).environment()
    if storage is not None:
        # dagster-postgres is made for psycopg2, which SQLAlchemy 2.1 no longer chooses by itself
        changes[STORAGE_VARIABLE] = "postgresql+psycopg2" + storage.get_secret_value().removeprefix("postgresql")
    return changes


def _secrets(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the name, `SECTION.NAME` or `NAME`, and value of every secret."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, SecretStr):
            yield name, value.get_secret_value()
        elif isinstance(value, BaseModel):
            for key in type(value).model_fields:
                inner = getattr(value, key)
                if isinstance(inner, SecretStr):
                    yield f"{name}.{key}", inner.get_secret_value()
    for issuer in config.gateway.issuers:
        if issuer.secret is not None:
            yield "gateway.issuers", issuer.secret.get_secret_value()


def _urls_with_password(config: Config) -> Iterator[str]:
    """Yield the URLs of stores and backends that contain a password. Every service that reads settings needs them."""
    shards = config.shard_config.stores.values() if config.shard_config is not None else ()
    urls = (config.staging.url, config.lake.catalog_uri, config.flush.to_uri, config.flush.queue)
    sources = (source.uri for source in config.sources.values())
    for url in (*urls, *config.adapters.values(), *sources, *shards):
        if without_password(url) != url:
            yield url


def _without_settings(config: Config, names: frozenset[str]) -> Config:
    """Return a configuration without the settings with these names, as `_secrets` yields them."""
    changes: dict[str, Any] = {}
    for name in names:
        section, _, key = name.partition(".")
        if key:
            changes.setdefault(section, {})[key] = () if name == "gateway.issuers" else None
        else:
            changes[name] = None
    return config.replace(**changes)


def _is_connector_secret(name: str, config: Config) -> bool:
    """Return whether the secret of a connector may be in this variable, by `[connectors] allowed_references`."""
    patterns = [each.removeprefix("env:") for each in config.connectors.allowed_references if each.startswith("env:")]
    return any(fnmatch.fnmatchcase(name, pattern.replace("{gateway}", "*")) for pattern in patterns)
