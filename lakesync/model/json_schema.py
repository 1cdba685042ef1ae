"""Checks values against JSON Schemas, with messages that name the place of a fault and never show the value.

Actions check their params, connectors their settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_SHOWN = 200


class Form:
    """A JSON Schema (2020-12, unless its `$schema` names another) that checks values."""

    def __init__(self, schema: dict[str, Any], what: str) -> None:
        """Check and compile the schema.

        Args:
            schema: the JSON Schema.
            what: whose schema it is, for the message.

        Raises:
            ConfigurationError: the schema is invalid.
        """
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError, best_match
        from jsonschema.validators import validator_for
        from referencing import Registry

        kind = validator_for(schema, default=Draft202012Validator)
        try:
            kind.check_schema(schema)
        except SchemaError as error:
            raise ConfigurationError(
                f"the JSON Schema of {what} is wrong at {error.json_path}: {error.message}"
            ) from None
        # an empty registry: schemas can refer only to themselves, and nothing is fetched
        nothing: Registry[Any] = Registry()
        self._faults = kind(schema, registry=nothing).iter_errors
        self._worst = best_match

    def fault(self, value: Any, name: str) -> str | None:
        """Return what is wrong with a decoded JSON value; None if it fits the schema.

        Args:
            value: the value.
            name: of the value, with which the message begins.
        """
        error = self._worst(self._faults(value))
        return None if error is None else _words(error, name + error.json_path.removeprefix("$"))


def _words(error: ValidationError, place: str) -> str:
    rule, value = error.validator, error.instance
    allowed: Any = error.validator_value
    if rule == "required" and isinstance(value, Mapping):
        missing = [name for name in allowed if name not in value]
        return f"{place} lacks {', '.join(map(repr, missing))}"
    if rule == "additionalProperties" and isinstance(value, Mapping) and isinstance(error.schema, Mapping):
        known = error.schema.get("properties", {})
        unknown = [name for name in value if name not in known]
        return f"{place} has no field {', '.join(map(repr, unknown))}; its fields are {', '.join(known)}"[:_SHOWN]
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
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
