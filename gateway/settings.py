"""What one server is told when it starts; `lakesync.config` is where it is read from."""

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
_SHOWN = ("jwt_secret", "jwt_secret_previous", "service_token", "metrics_token")
"""Settings whose secrets callers show, or sign with."""
MIN_SECRET_BYTES = 32
"""Of a secret that is hard to guess: HS256 asks for as many."""


@dataclass(frozen=True)
class GatewaySettings:
    """Settings of the server, secrets in plain text."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    secrets: tuple[str, ...] = ()
    """One secret, or two while they are rotated; none allows loopback only."""
    issuers: tuple[Issuer, ...] = ()
    """Others that sign tokens."""
    sole_gateway: str | None = None
    """The only declared gateway, which tokens need not name; None where there are several, or none is declared."""
    weak_secrets: tuple[str, ...] = ()
    """Names of settings that hold a secret which is blank, or shorter than 32 bytes."""
    service_token: str | None = None
    """What the pipeline shows at `/internal/staging`; None closes it."""
    metrics_token: str | None = None
    """What Prometheus shows at `/metrics`; None opens it."""
    allowed_origins: tuple[str, ...] = ("*",)
    max_body_bytes: int = 1 << 20
    requests_per_second: float = 1000.0
    """Of one client, averaged over ten seconds."""
    request_timeout: float = 30.0
    """Seconds until the answer begins, between the parts of a streamed one, and for what is in flight at the end."""
    max_connections: int = 2000
    """WebSocket connections at once."""
    gateway_connections: int = 1000
    """Of those, one gateway's share."""
    client_connections: int = 20
    """Of those, one client's share."""
    messages_per_second: float = 50.0
    """Over WebSockets, of one client, averaged over ten seconds."""
    slow_reader_seconds: float = 10.0
    """After which a WebSocket is closed whose client takes nothing of what it was sent."""
    page_patience: float = 1.0
    """Seconds in which a client in the middle of its pages is left to pull the next by itself."""
    auto_create: bool = True
    """Whether a valid token may make the gateway that it names."""
    staging_folders: tuple[Path, ...] = ()
    """Where staging is kept on this machine, each shard of it."""
    min_free_disk_bytes: int = 64 << 20
    """With less than this free there, the server is not ready."""
    limits: EngineLimits = field(default_factory=EngineLimits)

    @property
    def asks_for_tokens(self) -> bool:
        """Whether callers must show a token."""
        return bool(self.secrets or self.issuers)

    @staticmethod
    def of(config: Config) -> GatewaySettings:
        """The server's part of the configuration."""
        given = (config.jwt_secret, config.jwt_secret_previous)
        shown = [(name, getattr(config, name)) for name in _SHOWN]
        shown += [("gateway_issuers", issuer.secret) for issuer in config.gateway.issuers]
        return GatewaySettings(
            host=config.gateway.host,
            port=config.gateway.port,
            secrets=tuple(_plain(secret) for secret in given if secret is not None and _plain(secret).strip()),
            issuers=configured_issuers(config),
            sole_gateway=config.sole_gateway,
            weak_secrets=tuple(name for name, secret in shown if secret is not None and _is_weak(secret)),
            service_token=_filled(config.service_token),
            metrics_token=_filled(config.metrics_token),
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


def _filled(secret: SecretStr | None) -> str | None:
    """A secret that is not blank."""
    return _plain(secret) if secret is not None and _plain(secret).strip() else None


def _plain(secret: SecretStr) -> str:
    return secret.get_secret_value()


def _folders(config: Config) -> tuple[Path, ...]:
    shards = shard_map(config.shard_config)
    urls = [config.staging.url] if shards is None else shard_urls(shards, config.staging.url).values()
    return tuple(Path("/" + url.partition("://")[2].lstrip("/")) for url in urls if url.startswith("sqlite://"))
