"""The settings of a gateway server, converted from the configuration that `lakesync.config` reads.

`python -m gateway` creates them; the modules of `gateway` read them. A gateway, in these settings, is one app's stream
of changes; one server serves many.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from lakesync.actions import ActionLimits
from lakesync.auth import Issuer, configured_issuers
from lakesync.config import Config
from lakesync.config.sections import LimitsSection
from lakesync.engine import EngineLimits
from lakesync.staging.shards import urls_by_shard

PREFIXES = ("", "/v1")
"""Prefixes of paths: every route is served under each of them."""
_DAY_MS = 86_400_000
_SECRET_SETTINGS = ("jwt_secret", "jwt_secret_previous", "service_token", "metrics_token")
"""Names of the settings whose secrets authenticate callers."""
MIN_SECRET_BYTES = 32
"""A shorter secret can be guessed; RFC 7518 requires as many for HS256."""


@dataclass(frozen=True)
class GatewaySettings:
    """Settings of the server, with secrets in plain text."""

    host: str = "127.0.0.1"
    port: int = 0
    """Port to listen on; 0 for any free port."""
    secrets: tuple[str, ...] = ()
    """Secrets with which tokens may be signed: the present one and, during a rotation, the previous one. Without
    secrets and issuers the server listens on loopback only."""
    issuers: tuple[Issuer, ...] = ()
    """Login providers and backends that sign tokens besides the server itself."""
    sole_gateway: str | None = None
    """Id of the gateway, if exactly one is declared: then a token may lack the gateway's id. Otherwise None."""
    weak_secrets: tuple[str, ...] = ()
    """Names of settings whose secret is blank or shorter than `MIN_SECRET_BYTES`. With any, the server listens on
    loopback only.
    """
    service_token: str | None = None
    """Bearer token of the pipeline for the internal routes; None to reject all requests to them."""
    metrics_token: str | None = None
    """Bearer token of Prometheus for `/metrics`; None to accept requests without one."""
    allowed_origins: tuple[str, ...] = ("*",)
    """Origins of web pages that may call the server; `*` for all."""
    limits: LimitsSection = field(default_factory=LimitsSection)
    """The section `[limits]`, of which the server uses the limits of requests, connections and the disk."""
    page_wait_seconds: float = 1.0
    """Seconds for which a WebSocket gets no broadcasts after a pull with a further page, which the client probably
    pulls next. Only tests change it."""
    auto_create: bool = True
    """Whether a valid token may create the gateway that it names."""
    staging_folders: tuple[Path, ...] = ()
    """Folders of the SQLite staging stores, one for each shard; empty for Postgres."""
    engine_limits: EngineLimits = field(default_factory=EngineLimits)
    """The engine's part of `[limits]`: sizes of pushes, unflushed bytes above which pushes are rejected, actions."""

    @property
    def requires_tokens(self) -> bool:
        """Whether callers need a token."""
        return bool(self.secrets or self.issuers)

    @staticmethod
    def of(config: Config) -> GatewaySettings:
        """Convert the project's configuration.

        Raises:
            ConfigurationError: the key file of an issuer cannot be used, or the settings of the shards are invalid.
        """
        signing_secrets = (config.jwt_secret, config.jwt_secret_previous)
        all_secrets = [(name, getattr(config, name)) for name in _SECRET_SETTINGS]
        all_secrets += [("gateway_issuers", issuer.secret) for issuer in config.gateway.issuers]
        return GatewaySettings(
            host=config.gateway.host,
            port=config.gateway.port,
            secrets=tuple(
                _plain(secret) for secret in signing_secrets if secret is not None and _plain(secret).strip()
            ),
            issuers=configured_issuers(config),
            sole_gateway=config.sole_gateway,
            weak_secrets=tuple(name for name, secret in all_secrets if secret is not None and _is_weak(secret)),
            service_token=_nonblank(config.service_token),
            metrics_token=_nonblank(config.metrics_token),
            allowed_origins=config.gateway.cors_origins,
            limits=config.limits,
            auto_create=config.gateway.auto_create,
            staging_folders=_folders(config),
            engine_limits=EngineLimits(
                max_deltas=config.limits.max_deltas,
                max_backpressure_bytes=config.limits.max_backpressure_bytes,
                actions=ActionLimits(
                    max_actions=config.limits.max_actions,
                    timeout=config.limits.action_timeout_seconds,
                    lease=config.limits.action_lease_seconds,
                    retention_ms=round(config.limits.action_retention_days * _DAY_MS),
                ),
            ),
        )


def _is_weak(secret: SecretStr) -> bool:
    """Return whether a secret is shorter than HMAC-SHA256 needs."""
    return len(_plain(secret).strip().encode()) < MIN_SECRET_BYTES


def _nonblank(secret: SecretStr | None) -> str | None:
    """Return a secret in plain text; None if it is blank."""
    return _plain(secret) if secret is not None and _plain(secret).strip() else None


def _plain(secret: SecretStr) -> str:
    """Return a secret in plain text."""
    return secret.get_secret_value()


def _folders(config: Config) -> tuple[Path, ...]:
    """Return the folders of the SQLite staging stores."""
    urls = urls_by_shard(config.shard_config, config.staging.url).values()
    return tuple(Path("/" + url.partition("://")[2].lstrip("/")) for url in urls if url.startswith("sqlite://"))
