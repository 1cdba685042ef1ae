"""Checks the form of ids, addresses and deltas (changes of rows), and the client ids of imports.

An *hlc* is a client's timestamp, by a hybrid logical clock. A *gateway* is one app's stream of changes; the *lake* is
the Iceberg tables that they are copied to. Gateway servers, clients and settings call these checks before all others.
Except for `check_erasure_target`, a check returns what is wrong, as a message or a rejection, or None; the caller
raises the error that fits.

An app's client id is the `sub` of its token. A client is never sent its own changes. So data that is imported for a
user under the user's own client id would never reach the user's app. An import has a client id of its own instead, made
from that `sub` (`importer_of`).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from lakesync.model.errors import Rejection, ValidationError
from lakesync.model.schema import IDENTIFIER_FORM, is_identifier
from lakesync.model.types import RowDelta, column_names

_IMPORT = "import:"
"""The beginning of the client ids of imports."""


def importer_of(sub: str) -> str:
    """Return the client id under which imports for a user are pushed, with a token of that user."""
    return _IMPORT + sub


def user_of(client_id: str) -> str:
    """Return the `sub` for which a client id pushes: the id itself, unless it belongs to imports."""
    return client_id.removeprefix(_IMPORT)


def is_importer(client_id: str) -> bool:
    """Return whether a client id belongs to imports. No token may have it as its `sub`."""
    return client_id.startswith(_IMPORT)


GATEWAY_ID = "[A-Za-z0-9_-]{1,64}"
"""Form of a gateway's id, as a regular expression."""
_GATEWAY_ID = re.compile(GATEWAY_ID)
MAX_ID_CHARS = 512
"""The most characters of a row, client, delta or action id."""
MAX_ROW_COLUMNS = 1_000
"""The most columns of a row. Each column costs memory and time whenever the row is merged."""
MAX_ROW_BYTES = 8 << 20
"""The most bytes of a row's values as JSON. A checkpoint (all rows, for a new client) sends each row in one message of
at most 16 MB. There each column may be a delta of its own, with three ids of up to 2 KiB; and small values may add
1 KiB for each column."""
MAX_HLC = (1 << 63) - 1
"""The highest hlc (timestamp of a hybrid logical clock): the lake stores it as a signed 64-bit integer."""
_INVALID_URL = "it is not a valid URL; check its host and port"
"""What is wrong with a URL that cannot be parsed."""


def check_erasure_target(subject: str, table: str | None, row_id: str | None, client_id: str | None) -> None:
    """Check that an erasure names one row or one client, and not a whole table or nothing.

    Args:
        subject: what has these fields, for the message.
        table: the row's table; None for a client.
        row_id: the row's id; None for a client.
        client_id: the client's id; None for a row.

    Raises:
        ValidationError: neither a row nor a client is named, only a part of a row's key, or both.
    """
    if (table is None, row_id is None, client_id is None) not in ((False, False, True), (True, True, False)):
        raise ValidationError(
            f"{subject} names table {table!r}, row {row_id!r} and client {client_id!r}: set either table and row_id, "
            "or client_id"
        )


def check_gateway_id(value: str) -> str | None:
    """Return what is wrong with a gateway's id; None if it is valid."""
    if _GATEWAY_ID.fullmatch(value):
        return None
    return f"{value!r} cannot be a gateway id; use 1 to 64 letters, digits, underscores and hyphens"


def check_address(name: str, value: str) -> str | None:
    """Return what is wrong with a gateway's address; None if it is valid. The message never contains a password.

    Args:
        name: the name of the setting, for the message.
        value: the address.
    """
    shown = f"{name} is {value.rpartition('@')[2]!r}"
    if not value.startswith(("http://", "https://")):
        return f"{shown}: it must begin with http:// or https://"
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:  # its message may contain a part of the password
        return f"{shown}: {_INVALID_URL}"
    if not host:
        return f"{shown}: it names no host"
    if parts.username is not None:
        return f"{name} has a user in it: leave that out, the token says who asks"
    return None


def check_keys_url(name: str, value: str) -> str | None:
    """Return what is wrong with the URL of the public keys that verify a login provider's tokens; None if it is valid.

    Keys that are fetched without TLS can be replaced on the way. So `http://` is allowed only for this machine, private
    addresses, and names without a full stop, such as a container's.

    Args:
        name: the name of the setting, for the message.
        value: the URL.
    """
    shown = f"{name} is {value.rpartition('@')[2]!r}"
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname or "", parts.port
    except ValueError:  # its message may contain a part of the password
        return f"{shown}: {_INVALID_URL}"
    if not host or parts.scheme not in ("http", "https") or parts.username is not None:
        return f"{shown}: it must be https://HOST/PATH, without a user"
    if parts.scheme == "http" and not _is_local(host):
        return f"{shown}: keys that come without TLS can be replaced on the way; use https://"
    return None


def check_id(name: str, value: str) -> str | None:
    """Return what is wrong with a row, client or delta id; None if it is valid.

    Args:
        name: the name of the field, for the message.
        value: the id.
    """
    if not value:
        return f"{name} is empty: give 1 to {MAX_ID_CHARS} characters"
    if len(value) > MAX_ID_CHARS:
        return f"{name} has {len(value)} characters, at most {MAX_ID_CHARS} are allowed"
    if "\0" in value:  # `wire.malformed` puts NUL in place of half of a pair
        return f"{name} {value!r} contains a NUL character, or half of a surrogate pair: leave it out"
    return None


def check_hlc(name: str, value: int) -> str | None:
    """Return what is wrong with an hlc; None if it is valid.

    Args:
        name: the name of the field, for the message.
        value: the hlc.
    """
    if not 0 <= value <= MAX_HLC:
        return f"{name} {value} is outside 0 to {MAX_HLC}: send the hybrid logical clock's value"
    return None


def find_malformed(deltas: Sequence[RowDelta]) -> list[Rejection]:
    """Return a rejection for every malformed delta."""
    if _all_well_formed(deltas):
        return []
    return [found for delta in deltas if (found := check_shape(delta)) is not None]


def check_shape(delta: RowDelta) -> Rejection | None:
    """Return a rejection if a delta is malformed; otherwise None."""
    message = _shape_problem(delta)
    return None if message is None else Rejection(delta.delta_id, ValidationError.code, message)


def _is_local(host: str) -> bool:
    """Return whether a host is this machine, has a private address, or has a name without a full stop."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        pass
    try:
        return ipaddress.ip_address(socket.inet_aton(host)).is_private  # other forms of IPv4, such as one number
    except (OSError, ValueError):
        return "." not in host or host.endswith(".localhost")


def _all_well_formed(deltas: Sequence[RowDelta]) -> bool:
    """Return whether `check_shape` accepts all deltas. This is faster, because equal parts are checked once."""
    if not deltas:
        return True
    ids = [delta.delta_id for delta in deltas]
    ids += [delta.row_id for delta in deltas]
    ids += {delta.client_id for delta in deltas}
    lengths = [*map(len, ids)]
    stamps = [delta.hlc for delta in deltas]
    names = set(column_names(deltas))
    return (
        min(lengths) > 0
        and max(lengths) <= MAX_ID_CHARS
        and "\0" not in "".join(ids)
        and min(stamps) >= 0
        and max(stamps) <= MAX_HLC
        and all(map(is_identifier, {delta.table for delta in deltas}.union(*names)))
        and not any(delta.columns for delta in deltas if delta.op == "DELETE")
        and all(len(set(each)) == len(each) for each in names)  # no delta has a column twice
    )


def _shape_problem(delta: RowDelta) -> str | None:
    """Return what is wrong with the form of a delta; None if it is valid."""
    message = (
        check_id("deltaId", delta.delta_id)
        or check_id("rowId", delta.row_id)
        or check_id("clientId", delta.client_id)
        or check_hlc("hlc", delta.hlc)
    )
    if message is not None:
        return message
    if not is_identifier(delta.table):
        return f"table {delta.table!r} is no identifier: use {IDENTIFIER_FORM}"
    if delta.op == "DELETE" and delta.columns:
        return f"a DELETE carries no columns, this one carries {delta.columns[0].column!r}: leave them out"
    names = {cell.column for cell in delta.columns}
    for name in names:
        if not is_identifier(name):
            return f"column {name!r} is no identifier: use {IDENTIFIER_FORM}"
    if len(names) < len(delta.columns):
        return "a column is given twice: send its last value alone"
    return None
