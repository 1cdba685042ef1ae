"""Checks the form of values: ids, addresses and deltas, before anything else is checked, and JSON against JSON Schemas.

Gateway, client and settings check ids and deltas (changes of rows); actions check their params by `JsonSchema`, and
connectors their settings.

An app's client id is the `sub` of its token. A client is never sent its own changes. So data that is imported for a
user under the user's own client id would never reach the user's app. An import has a client id of its own instead, made
from that `sub` (`importer_of`).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lakesync.model.errors import ConfigurationError, Rejection, ValidationError
from lakesync.model.schema import is_identifier
from lakesync.model.types import RowDelta

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError as SchemaViolation

_IMPORT = "import:"
"""The beginning of the client ids of imports."""
_MAX_SHOWN_CHARS = 200
"""The most characters of a list of allowed values or field names in a message."""


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
"""The most characters of a row, client or delta id."""
MAX_HLC = (1 << 63) - 1
"""The highest hlc (timestamp of a hybrid logical clock): the lake stores it as a signed 64-bit integer."""


def check_erasure_target(subject: str, table: str | None, row_id: str | None, client_id: str | None) -> None:
    """Check that an erasure names one row or one client; otherwise it would cover a whole gateway or table, or nothing.

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
    except ValueError as error:
        return f"{shown}: {error}"
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
    except ValueError as error:
        return f"{shown}: {error}"
    if not host or parts.scheme not in ("http", "https") or parts.username is not None:
        return f"{shown}: it must be https://HOST/PATH, without a user"
    if parts.scheme == "http" and not _is_local(host):
        return f"{shown}: keys that come without TLS can be replaced on the way; use https://"
    return None


def _is_local(host: str) -> bool:
    """Return whether a host is this machine, has a private address, or has a name without a full stop."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith(".localhost")


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
    if "\0" in value:
        return f"{name} {value!r} contains a NUL character: leave it out"
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


def _all_well_formed(deltas: Sequence[RowDelta]) -> bool:
    """Return whether `check_shape` accepts all deltas. It is faster than that, because equal parts are checked once."""
    if not deltas:
        return True
    ids = [delta.delta_id for delta in deltas]
    ids += [delta.row_id for delta in deltas]
    ids += {delta.client_id for delta in deltas}
    lengths = [*map(len, ids)]
    stamps = [delta.hlc for delta in deltas]
    names = [cell.column for delta in deltas for cell in delta.columns]
    return (
        min(lengths) > 0
        and max(lengths) <= MAX_ID_CHARS
        and "\0" not in "".join(ids)
        and min(stamps) >= 0
        and max(stamps) <= MAX_HLC
        and all(map(is_identifier, {delta.table for delta in deltas}.union(names)))
        and not any(delta.columns for delta in deltas if delta.op == "DELETE")
        and _each_once(deltas, names)
    )


def _each_once(deltas: Sequence[RowDelta], names: list[str]) -> bool:
    """Return whether no delta has a column twice.

    Args:
        deltas: the deltas, at least one.
        names: the column names of all deltas, in order.
    """
    width = len(deltas[0].columns)
    if {len(delta.columns) for delta in deltas} == {width} and names == names[:width] * len(deltas):
        return len(set(names)) == width
    return all(len({cell.column for cell in delta.columns}) == len(delta.columns) for delta in deltas)


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
        return f"table {delta.table!r} is no identifier: use letters, digits and _, at most 64, no digit first"
    if delta.op == "DELETE" and delta.columns:
        return f"a DELETE carries no columns, this one carries {delta.columns[0].column!r}: leave them out"
    names = {cell.column for cell in delta.columns}
    for name in names:
        if not is_identifier(name):
            return f"column {name!r} is no identifier: use letters, digits and _, at most 64, no digit first"
    if len(names) < len(delta.columns):
        return "a column is given twice: send its last value alone"
    return None


class JsonSchema:
    """A compiled JSON Schema (2020-12, unless its `$schema` names another version) that checks values."""

    def __init__(self, schema: dict[str, Any], what: str) -> None:
        """Check and compile the schema.

        Args:
            schema: the JSON Schema.
            what: what the schema belongs to, for the message, for example an action's name.

        Raises:
            ConfigurationError: the schema is invalid.
        """
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError, best_match
        from jsonschema.validators import validator_for
        from referencing import Registry

        validator = validator_for(schema, default=Draft202012Validator)
        try:
            validator.check_schema(schema)
        except SchemaError as error:
            raise ConfigurationError(
                f"the JSON Schema of {what} is wrong at {error.json_path}: {error.message}"
            ) from None
        # An empty registry: schemas can refer only to themselves, and nothing is fetched.
        registry: Registry[Any] = Registry()
        self._violations = validator(schema, registry=registry).iter_errors
        self._best_match = best_match

    def violation(self, value: Any, name: str) -> str | None:
        """Return what is wrong with a decoded JSON value, as a sentence; None if it fits the schema.

        Args:
            value: the value.
            name: the name of the value, with which the message begins.

        Raises:
            referencing.exceptions.Unresolvable: a `$ref` in the schema names anything outside of the schema.
        """
        error = self._best_match(self._violations(value))
        return None if error is None else _describe(error, name + error.json_path.removeprefix("$"))


def _describe(error: SchemaViolation, place: str) -> str:
    """Return a violation of a JSON Schema as a sentence.

    Args:
        error: the violation.
        place: the name of the invalid value, for example `params.issue`.
    """
    rule, value = error.validator, error.instance
    allowed: Any = error.validator_value
    if rule == "required" and isinstance(value, Mapping):
        missing = [name for name in allowed if name not in value]
        return f"{place} lacks {', '.join(map(repr, missing))}"
    if rule == "additionalProperties" and isinstance(value, Mapping) and isinstance(error.schema, Mapping):
        known = error.schema.get("properties", {})
        unknown = [name for name in value if name not in known]
        return f"{place} has no field {', '.join(map(repr, unknown))}; its fields are {', '.join(known)}"[
            :_MAX_SHOWN_CHARS
        ]
    if rule == "type":
        names = [allowed] if isinstance(allowed, str) else allowed
        return f"{place} must be of type {' or '.join(names)}"
    if rule == "enum":
        return f"{place} must be one of {_json(allowed)}"
    if rule == "const":
        return f"{place} must be {_json(allowed)}"
    if rule == "minLength" and allowed == 1:
        return f"{place} must not be empty"
    return f"{place} must satisfy {rule} {_json(allowed)}"


def _json(value: Any) -> str:
    """Return a value as JSON for a message, shortened to `_MAX_SHOWN_CHARS`."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"
