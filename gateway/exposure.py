"""Who can reach the server, and whom it serves without a secret."""

from __future__ import annotations

import ipaddress

import structlog

from gateway.settings import MIN_SECRET_BYTES, GatewaySettings
from lakesync.exceptions import ConfigurationError

log = structlog.get_logger("gateway")


def check_exposure(settings: GatewaySettings) -> None:
    """Refuse to serve others than this machine without a secret, or with one that can be guessed.

    Raises:
        ConfigurationError: there is no secret, or a short or blank one, and the host is not a loopback address.
    """
    exposed = settings.host != "localhost" and not is_loopback(settings.host)
    if exposed and not settings.secrets and not settings.weak_secrets:
        raise ConfigurationError(
            f"without a secret the gateway listens on loopback only, not on {settings.host!r}: "
            "set LAKESYNC_JWT_SECRET, or use --host 127.0.0.1"
        )
    for name in settings.weak_secrets:
        fault = f"LAKESYNC_{name.upper()} is blank or has fewer than {MIN_SECRET_BYTES} bytes"
        if exposed:
            raise ConfigurationError(
                f"{fault}, so the gateway listens on loopback only, not on {settings.host!r}: "
                "make one with `openssl rand -hex 32`, or use --host 127.0.0.1"
            )
        log.warning("a secret can be guessed", reason=fault, host=settings.host)


def is_loopback(address: str) -> bool:
    """Whether an IP address is this machine's own; a name is not."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback
