"""Checks which hosts connectors may call. Tenants choose the URLs, and must not reach the server's own network.

A tenant's connector connects its gateway, one app's stream of changes, with an external system. A host name is resolved
once, its addresses are checked, and the connection goes to a checked address. So a name that later resolves to another
address (DNS rebinding) cannot bypass the check. `HttpApi`, the database sources and the connector registry call this
module.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec
from requests import PreparedRequest
from requests.utils import select_proxy

from lakesync.model.errors import ConfigurationError
from lakesync.wire.http_sessions import BoundedAdapter

ANY_PUBLIC = "*"
"""Allows every host with a public address."""

_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv6 addresses that contain an IPv4 address in their last 32 bits."""
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class HostPolicy(msgspec.Struct, frozen=True):
    """The hosts that connectors of a server may call."""

    allowed: tuple[str, ...] = (ANY_PUBLIC,)
    """Patterns of allowed host names, such as `*.example.com`, allowed networks, such as `10.1.0.0/16`, or `*`.

    `*` allows every host with a public address. Hosts that match another pattern may have private addresses.
    """

    def check(self, setting: str, url: str) -> None:
        """Check a URL without resolving its host.

        Args:
            setting: the setting's name, for the message.
            url: the URL that a tenant set.

        Raises:
            ConfigurationError: the URL is not plain http or https, or its host is not allowed.
        """
        host = _parse_url(setting, url).hostname or ""
        literal = _parse_address(host)
        # a name may still be allowed by its addresses, which are not resolved here
        may_be_allowed = self._allows(literal) if literal is not None else self._may_allow_by_address
        if not may_be_allowed and not self._is_named(host):
            raise ConfigurationError(f"{setting}: {_not_allowed(host)}")

    def resolve(self, host: str, port: int) -> str:
        """Resolve a host to an allowed address.

        Args:
            host: a name or an address.
            port: the port to connect to.

        Raises:
            ConfigurationError: the host, or one of its addresses, is not allowed, or the name is malformed.
            OSError: the host cannot be resolved.
        """
        is_named = self._is_named(host)
        if not is_named and not self._may_allow_by_address:
            raise ConfigurationError(_not_allowed(host))
        try:
            addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except UnicodeError as error:  # a part of the name is empty, or longer than 63 characters
            raise ConfigurationError(f"{host!r} is not a valid host name ({error}): correct the address") from None
        for each in addresses:
            if not is_named and not self._allows(ipaddress.ip_address(each.partition("%")[0])):
                raise ConfigurationError(_not_allowed(host))
        return addresses[0]

    @property
    def _may_allow_by_address(self) -> bool:
        """Whether a host may be allowed because of its address alone."""
        return any(pattern == ANY_PUBLIC or "/" in pattern for pattern in self.allowed)

    def _is_named(self, host: str) -> bool:
        """Return whether a pattern names the host itself."""
        folded = host.lower().rstrip(".")
        return any(
            fnmatch.fnmatchcase(folded, pattern.lower())
            for pattern in self.allowed
            if pattern != ANY_PUBLIC and "/" not in pattern
        )

    def _allows(self, address: _Address) -> bool:
        """Return whether an address is in an allowed network, or public if public addresses are allowed."""
        for pattern in self.allowed:
            if "/" in pattern and address in ipaddress.ip_network(pattern):
                return True
        return ANY_PUBLIC in self.allowed and _is_public(address)


class PinnedAdapter(BoundedAdapter):
    """Transport adapter of `requests` that connects to the address that the policy has checked.

    The Host header and TLS use the host's name. With a proxy, which resolves hosts itself, only the name is checked.
    """

    def __init__(self, hosts: HostPolicy) -> None:
        """Store the policy.

        Args:
            hosts: the hosts that may be called.
        """
        self._hosts = hosts
        super().__init__()

    def add_headers(self, request: PreparedRequest, **_: Any) -> None:
        """Set the Host header, because the connection's address does not contain the name."""
        request.headers.setdefault("Host", urlsplit(request.url or "").netloc)

    def get_connection_with_tls_context(
        self,
        request: PreparedRequest,
        verify: Any,
        proxies: Mapping[str, str] | None = None,
        cert: Any = None,
    ) -> Any:
        """Return a connection to the checked address; TLS verifies the host's name.

        Args:
            request: the request.
            verify: as in `requests`.
            proxies: as in `requests`.
            cert: as in `requests`.

        Raises:
            ConfigurationError, OSError: as `HostPolicy.resolve`.
        """
        url = request.url or ""
        parts = _parse_url("the address", url)
        host = parts.hostname or ""
        if select_proxy(url, proxies):
            self._hosts.check("the address", url)
            return super().get_connection_with_tls_context(request, verify, proxies, cert)
        params, found = self.build_connection_pool_key_attributes(request, verify, cert)
        pool: dict[str, Any] = {**found}
        if parts.scheme == "https":
            pool |= {"server_hostname": host, "assert_hostname": host}
        address = self._hosts.resolve(host, parts.port or _PORTS[parts.scheme])
        return self.poolmanager.connection_from_host(**{**params, "host": address}, pool_kwargs=pool)


def _parse_url(setting: str, url: str) -> SplitResult:
    """Return the parts of a URL.

    Raises:
        ConfigurationError: the URL is not plain http or https, or contains a user, a password or a fragment.
    """
    try:
        parts = urlsplit(url)
        plain = parts.scheme in _PORTS and parts.hostname and parts.port != 0
    except ValueError:  # its message may contain a part of the password
        raise ConfigurationError(f"{setting} is not a valid URL: check its host and port") from None
    if not plain or "\\" in url or any(char <= " " or char == "\x7f" for char in url):
        raise ConfigurationError(f"{setting} is not an http or https URL: write https://HOST or http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError(f"{setting} contains a user or a password: remove them")
    if parts.fragment:
        raise ConfigurationError(f"{setting} has a fragment, `#…`, which is never sent: remove it")
    return parts


def _parse_address(host: str) -> _Address | None:
    """Parse a host that is an address, also in forms such as `127.1` and `0x7f000001`; None if it is a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _is_public(address: _Address) -> bool:
    """Return whether an address, and any IPv4 address embedded in it, is public."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if not all(_is_public(each) for each in inner if each is not None):
            return False
        if address.ipv4_mapped is not None:
            return True
    return address.is_global and not address.is_multicast


def _not_allowed(host: str) -> str:
    return (
        f"the host {host!r} may not be called by connectors of this server. Private addresses are rejected unless "
        "the operator allows them: [connectors] allowed_hosts"
    )
