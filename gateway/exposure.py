"""Who can reach the server, and whom it serves without a secret."""

from __future__ import annotations

import ipaddress

from gateway.settings import GatewaySettings
from lakesync.exceptions import ConfigurationError


def check_exposure(settings: GatewaySettings) -> None:
    """Refuse to serve others than this machine without a secret.

    Raises:
        ConfigurationError: there is no secret and the host is not a loopback address.
    """
    if not settings.secrets and settings.host != "localhost" and not is_loopback(settings.host):
        raise ConfigurationError(
            f"without a secret the gateway listens on loopback only, not on {settings.host!r}: "
            "set LAKESYNC_JWT_SECRET, or use --host 127.0.0.1"
        )


def is_loopback(address: str) -> bool:
    """Whether an IP address is this machine's own; a name is not."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback
