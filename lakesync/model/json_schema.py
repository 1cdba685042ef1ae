"""`JsonSchema`: checks values against a JSON Schema, and says in one sentence what is wrong.

Actions (`actions.action_services`) check their params by it, and the registry of connectors (`connectors.registry`) the
settings of a connector. The package `jsonschema` is imported when a schema is compiled, because it is slow to import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError as SchemaViolation

_MAX_SHOWN_CHARS = 200
"""The most characters of a list of allowed values, or of a sentence with field names."""


class JsonSchema:
    """A compiled JSON Schema (2020-12, unless its `$schema` names another version from draft 4) that checks values."""

    def __init__(self, schema: dict[str, Any], what: str) -> None:
        """Check and compile the schema.

        Args:
            schema: the JSON Schema.
            what: what the schema belongs to, for the message, for example an action's name.

        Raises:
            ConfigurationError: the schema is invalid, or of draft 3.
        """
        from jsonschema import Draft3Validator, Draft202012Validator
        from jsonschema.exceptions import SchemaError, best_match
        from jsonschema.validators import validator_for
        from referencing import Registry

        validator = validator_for(schema, default=Draft202012Validator)
        if validator is Draft3Validator:  # `best_match` fails for its types
            raise ConfigurationError(f"the JSON Schema of {what} is of draft 3; write it for draft 4 or newer")
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
        try:
            error = self._best_match(self._violations(value))
        except OverflowError:  # jsonschema converts both numbers of a `multipleOf` to floats if one is a float
            return f"{name} has a number that is too large to be checked by multipleOf"
        return None if error is None else _describe(error, name + error.json_path.removeprefix("$"))


def _describe(error: SchemaViolation, name: str) -> str:
    """Return a violation of a JSON Schema as a sentence.

    Args:
        error: the violation.
        name: the name of the invalid value, for example `params.issue`.
    """
    rule, value = error.validator, error.instance
    allowed: Any = error.validator_value
    if rule == "required" and isinstance(value, Mapping):
        missing = [each for each in allowed if each not in value]
        return f"{name} lacks {', '.join(map(repr, missing))}"
    if rule == "additionalProperties" and isinstance(value, Mapping) and isinstance(error.schema, Mapping):
        return _shorten(f"{name} {_unknown_fields(error.schema, value)}")
    if error.schema is False:  # `jsonschema` does not say which value in it has the schema
        return f"{name} has a value where its schema allows none"
    if rule == "type":
        names = [allowed] if isinstance(allowed, str) else allowed
        return f"{name} must be of type {' or '.join(names)}"
    if rule == "enum":
        return f"{name} must be one of {_json(allowed)}"
    if rule == "const":
        return f"{name} must be {_json(allowed)}"
    if rule == "minLength" and allowed == 1:
        return f"{name} must not be empty"
    return f"{name} must satisfy {rule} {_json(allowed)}"


def _unknown_fields(schema: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    """Return the end of a sentence that names an object's unknown fields, and those that its schema knows."""
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    unknown = [
        name for name in value if name not in known and not any(re.search(pattern, name) for pattern in patterns)
    ]
    fields = [*known, *(f"those that match {pattern}" for pattern in patterns)]
    allowed = f"its fields are {', '.join(fields)}" if fields else "it must be empty"
    return f"has no field {', '.join(map(repr, unknown))}; {allowed}"


def _json(value: Any) -> str:
    """Return a value as JSON for a message, shortened to `_MAX_SHOWN_CHARS`."""
    return _shorten(json.dumps(value, ensure_ascii=False))


def _shorten(text: str) -> str:
    """Return a text of at most `_MAX_SHOWN_CHARS`, with `…` in place of its end."""
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"
