"""The settings of one server, converted from the configuration that `lakesync.config` reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from lakesync.actions import ActionLimits
from lakesync.auth import Issuer, configured_issuers
from lakesync.config import Config
from lakesync.engine import EngineLimits
from lakesync.staging.shards import shard_map, shard_urls

PREFIXES = ("", "/v1")
"""Every route is served under each of these."""
_DAY_MS = 86_400_000
_SECRET_SETTINGS = ("jwt_secret", "jwt_secret_previous", "service_token", "metrics_token")
"""Settings that let a caller in."""
MIN_SECRET_BYTES = 32
"""A shorter secret can be guessed; RFC 7518 requires as many for HS256."""


@dataclass(frozen=True)
class GatewaySettings:
    """Settings of the server, with secrets in plain text."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free port."""
    secrets: tuple[str, ...] = ()
    """One secret, or two while they are rotated; without one the server listens on loopback only."""
    issuers: tuple[Issuer, ...] = ()
    """Login providers and backends that sign tokens besides the server itself."""
    sole_gateway: str | None = None
    """The only declared gateway, which tokens need not name; None unless exactly one is declared."""
    weak_secrets: tuple[str, ...] = ()
    """Names of settings whose secret is blank or shorter than `MIN_SECRET_BYTES`."""
    service_token: str | None = None
    """Bearer token of the pipeline for the internal routes; None closes them."""
    metrics_token: str | None = None
    """Bearer token of Prometheus for `/metrics`; None opens it to everyone."""
    allowed_origins: tuple[str, ...] = ("*",)
    max_body_bytes: int = 1 << 20
    requests_per_second: float = 1000.0
    """Requests of one client, averaged over ten seconds."""
    request_timeout: float = 30.0
    """Seconds until an answer begins, between parts of a streamed one, and for draining at shutdown."""
    max_connections: int = 2000
    """Most open WebSocket connections of the server."""
    gateway_connections: int = 1000
    """Most open WebSocket connections of one gateway."""
    client_connections: int = 20
    """Most open WebSocket connections of one client."""
    messages_per_second: float = 50.0
    """WebSocket messages of one client, averaged over ten seconds."""
    slow_reader_seconds: float = 10.0
    """A WebSocket is closed if its client reads nothing for so long."""
    page_wait_seconds: float = 1.0
    """Broadcasts pause so long after a page with `hasMore`: the client probably pulls the next page itself."""
    auto_create: bool = True
    """Whether a valid token may create the gateway that it names."""
    staging_folders: tuple[Path, ...] = ()
    """Folders of the SQLite staging stores, one a shard; empty for Postgres."""
    min_free_disk_bytes: int = 64 << 20
    """`/ready` answers 503 with less free space in one of these folders."""
    limits: EngineLimits = field(default_factory=EngineLimits)

    @property
    def requires_tokens(self) -> bool:
        """Whether callers need a token."""
        return bool(self.secrets or self.issuers)

    @staticmethod
    def of(config: Config) -> GatewaySettings:
        """Convert a configuration."""
        given = (config.jwt_secret, config.jwt_secret_previous)
        shown = [(name, getattr(config, name)) for name in _SECRET_SETTINGS]
        shown += [("gateway_issuers", issuer.secret) for issuer in config.gateway.issuers]
        return GatewaySettings(
            host=config.gateway.host,
            port=config.gateway.port,
            secrets=tuple(_plain(secret) for secret in given if secret is not None and _plain(secret).strip()),
            issuers=configured_issuers(config),
            sole_gateway=config.sole_gateway,
            weak_secrets=tuple(name for name, secret in shown if secret is not None and _is_weak(secret)),
            service_token=_nonblank(config.service_token),
            metrics_token=_nonblank(config.metrics_token),
            allowed_origins=config.gateway.cors_origins,
            max_body_bytes=config.limits.max_body_bytes,
            requests_per_second=config.limits.requests_per_second,
            request_timeout=config.limits.request_timeout_seconds,
            max_connections=config.limits.websocket_connections,
            gateway_connections=config.limits.websocket_connections_per_gateway,
            client_connections=config.limits.websocket_connections_per_client,
            messages_per_second=config.limits.websocket_messages_per_second,
            slow_reader_seconds=config.limits.websocket_slow_reader_seconds,
            auto_create=config.gateway.auto_create,
            staging_folders=_folders(config),
            min_free_disk_bytes=config.limits.min_free_disk_bytes,
            limits=EngineLimits(
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
    return len(_plain(secret).strip().encode()) < MIN_SECRET_BYTES


def _nonblank(secret: SecretStr | None) -> str | None:
    """Return a secret in plain text; None if it is blank."""
    return _plain(secret) if secret is not None and _plain(secret).strip() else None


def _plain(secret: SecretStr) -> str:
    return secret.get_secret_value()


def _folders(config: Config) -> tuple[Path, ...]:
    shards = shard_map(config.shard_config)
    urls = [config.staging.url] if shards is None else shard_urls(shards, config.staging.url).values()
    return tuple(Path("/" + url.partition("://")[2].lstrip("/")) for url in urls if url.startswith("sqlite://"))
