"""`JsonSchema`: checks values against a JSON Schema, and says in one sentence what is wrong.

Actions (`actions.action_services`) check their params by it, and the registry of connectors (`connectors.registry`) the
settings of a connector. The package `jsonschema` is imported when a schema is compiled, because it is slow to import.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError as SchemaViolation

_MAX_SHOWN_CHARS = 200
"""The most characters of a list of allowed values or field names in a message."""


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
