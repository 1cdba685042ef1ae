"""Restricts a server whose secret is missing or can be guessed to this machine.

Without secrets and issuers of tokens, every caller of the server (called *gateway* in messages) is an admin.
`python -m gateway` checks the address on which it listens (`check_bind_address`). Web pages of any site can make a
browser on this machine send requests, so the authentication of each request checks which page sends it (`check_page`).
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
    """Reject an address other than loopback if there is no secret and no issuer, or if a secret can be guessed.

    Args:
        settings: the server's settings.

    Raises:
        ConfigurationError: the host is not a loopback address, and secrets and issuers are missing, or a secret is
            blank or too short.
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
        origins: origins of further pages that may call it; `*` has no effect here.

    Raises:
        ForbiddenError: the page is from another site, or it uses a DNS name that resolves to loopback.
    """
    hosts, origin = headers.getlist("host"), headers.get("origin")
    if not all(_is_local_url(f"http://{host}") for host in hosts):
        raise ForbiddenError(
            "without a secret the gateway is served as localhost or 127.0.0.1 only: call it so, or set "
            "LAKESYNC_JWT_SECRET"
        )
    if origin is None:  # the browser marks the request if another site caused it, such as by an image or a link
        is_foreign = headers.get("sec-fetch-site") == "cross-site"
    else:
        is_foreign = origin not in origins and not _is_local_url(origin)
    if is_foreign:
        raise ForbiddenError(
            "without a secret the gateway serves no pages of other sites: name their origins in cors_origins of "
            "[gateway], or set LAKESYNC_JWT_SECRET"
        )


def is_loopback(address: str) -> bool:
    """Return whether an IP address is a loopback address; False for a host name."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback


def _is_local_url(url: str) -> bool:
    """Return whether a URL's host is this machine."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host == "localhost" or host.endswith(".localhost") or is_loopback(host)
