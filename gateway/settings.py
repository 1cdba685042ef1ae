"""What one server is told when it starts; `lakesync.config` is where it is read from."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import SecretStr

from lakesync.config import Config
from lakesync.engine import EngineLimits


@dataclass(frozen=True)
class GatewaySettings:
    """Settings of the server, secrets in plain text."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    secrets: tuple[str, ...] = ()
    """One secret, or two while they are rotated; none allows loopback only."""
    service_token: str | None = None
    """What the pipeline shows at `/internal/staging`; None closes it."""
    allowed_origins: tuple[str, ...] = ("*",)
    max_body_bytes: int = 1 << 20
    requests_per_second: float = 1000.0
    """Of one client, averaged over ten seconds."""
    request_timeout: float = 30.0
    """Seconds until the answer begins, between the parts of a streamed one, and for what is in flight at the end."""
    auto_create: bool = True
    """Whether a valid token may make the gateway that it names."""
    limits: EngineLimits = field(default_factory=EngineLimits)

    @staticmethod
    def of(config: Config) -> GatewaySettings:
        """The server's part of the configuration."""
        given = (config.jwt_secret, config.jwt_secret_previous)
        return GatewaySettings(
            host=config.gateway.host,
            port=config.gateway.port,
            secrets=tuple(_plain(secret) for secret in given if secret is not None and _plain(secret)),
            service_token=_plain(config.service_token) if config.service_token else None,
            allowed_origins=config.gateway.cors_origins,
            max_body_bytes=config.limits.max_body_bytes,
            requests_per_second=config.limits.requests_per_second,
            request_timeout=config.limits.request_timeout_seconds,
            auto_create=config.gateway.auto_create,
            limits=EngineLimits(
                max_deltas=config.limits.max_deltas, max_backpressure_bytes=config.limits.max_backpressure_bytes
            ),
        )


def _plain(secret: SecretStr) -> str:
    return secret.get_secret_value()
