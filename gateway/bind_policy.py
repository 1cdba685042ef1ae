"""Restricts the server while it has no secret or a weak one: where it listens, and which web pages may call it.

`python -m gateway` checks the address, the authentication of each request (`gateway.dependencies`) the page.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers

from gateway.settings import MIN_SECRET_BYTES, GatewaySettings
from lakesync.model.errors import ConfigurationError, ForbiddenError

log = structlog.get_logger("gateway")


def check_bind_address(settings: GatewaySettings) -> None:
    """Reject an address other than loopback if there is no secret, or one that can be guessed.

    Args:
        settings: the server's settings.

    Raises:
        ConfigurationError: the host is not a loopback address, and a secret is missing, blank or too short.
    """
    is_exposed = settings.host != "localhost" and not is_loopback(settings.host)
    if is_exposed and not settings.requires_tokens and not settings.weak_secrets:
        raise ConfigurationError(
            f"without a secret the gateway listens on loopback only, not on {settings.host!r}: "
            "set LAKESYNC_JWT_SECRET or [[gateway.issuers]], or use --host 127.0.0.1"
        )
    for name in settings.weak_secrets:
        fault = f"LAKESYNC_{name.upper()} is blank or has fewer than {MIN_SECRET_BYTES} bytes"
        if is_exposed:
            raise ConfigurationError(
                f"{fault}, so the gateway listens on loopback only, not on {settings.host!r}: "
                "make one with `openssl rand -hex 32`, or use --host 127.0.0.1"
            )
        log.warning("a secret can be guessed", reason=fault, host=settings.host)


def check_page(headers: Headers, origins: Collection[str]) -> None:
    """Reject requests that a web page of another site makes a browser send to a gateway without tokens.

    Pages of servers on this machine, and pages of the allowed origins, may call the gateway.

    Args:
        headers: headers of the request.
        origins: the allowed origins; here `*` allows none.

    Raises:
        ForbiddenError: the page is from another site, or it uses a DNS name that resolves to loopback.
    """
    hosts, origin = headers.getlist("host"), headers.get("origin")
    if not all(_is_local_url(f"http://{host}") for host in hosts):
        raise ForbiddenError(
            "without a secret the gateway is served as localhost or 127.0.0.1 only: call it so, or set "
            "LAKESYNC_JWT_SECRET"
        )
    cross = origin not in origins and not _is_local_url(origin) if origin is not None else _is_cross_site(headers)
    if cross:
        raise ForbiddenError(
            "without a secret the gateway serves no pages of other sites: name their origins in cors_origins of "
            "[gateway], or set LAKESYNC_JWT_SECRET"
        )


def _is_cross_site(headers: Headers) -> bool:
    """Return whether the browser marks the request as sent by another site, such as an image or a link."""
    return headers.get("sec-fetch-site") == "cross-site"


def _is_local_url(url: str) -> bool:
    """Return whether a URL's host is this machine."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host == "localhost" or host.endswith(".localhost") or is_loopback(host)


def is_loopback(address: str) -> bool:
    """Return whether an IP address is a loopback address; False for a host name."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback
