"""Builds the OpenAPI document: JSON Schemas of values, the bridge from msgspec types to FastAPI, and error responses.

The routes use its types and functions in their declarations; the application calls `openapi_document`. A *gateway* is
one app's stream of changes. FastAPI documents pydantic models. The routes' bodies are mostly msgspec structs, so
`Struct[T]` documents and encodes a struct `T` as a response, and `request_body` documents one as a body.
`struct_schema` returns msgspec's own JSON Schema of a type, with what msgspec cannot express: limits of lengths and
ranges (`PROPERTY_KEYWORDS`), and conditions (`OBJECT_KEYWORDS`).
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from fastapi import FastAPI
from fastapi.openapi.models import Example
from fastapi.openapi.utils import get_openapi
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from gateway.errors import ErrorBody, status_of
from lakesync.actions import ActionLimits
from lakesync.connectors.built_in import BUILT_IN
from lakesync.engine.checks import MAX_PULL, EngineLimits
from lakesync.model import errors
from lakesync.model.delta import MAX_DEPTH
from lakesync.model.errors import LakeSyncError
from lakesync.model.validation import GATEWAY_ID, MAX_HLC, MAX_ID_CHARS
from lakesync.rules.model import CLAIM_PREFIX, MAX_NAME_CHARS
from lakesync.wire.json import encode_json

# The JSON Schemas of values that several types have.

HLC: dict[str, Any] = {
    "description": "64 bits as a decimal string; an integer is accepted too",
    "anyOf": [
        {"type": "string", "pattern": "^(0|[1-9][0-9]{0,17})$"},
        {"type": "integer", "minimum": 0, "maximum": MAX_HLC},
    ],
}
"""A timestamp of a hybrid logical clock, or a cursor, in a request. The pattern has eighteen digits, which are enough
until the year 2453; larger ones are accepted too."""
HLC_IN_RESPONSE: dict[str, Any] = {
    "description": "64 bits as a decimal string",
    "type": "string",
    "pattern": "^[0-9]{1,19}$",
}
"""A timestamp or cursor in a response, where it is always text."""
GATEWAY: dict[str, Any] = {"type": "string", "pattern": f"^{GATEWAY_ID}$"}
"""Id of a gateway, one app's stream of changes."""
GATEWAY_PARAMETER: dict[str, Any] = {"name": "gateway", "in": "path", "required": True, "schema": GATEWAY}
IDENTIFIER: dict[str, Any] = {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]{0,63}$"}
"""Name of a table or column."""
REFERENCE: dict[str, Any] = {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]{0,63}\\.[a-zA-Z_][a-zA-Z0-9_]{0,63}$"}
"""A column that another one points to, `table.column`; without `type`, because an object is accepted too."""
ID: dict[str, Any] = {"type": "string", "pattern": "^[^\\x00]+$", "minLength": 1, "maxLength": MAX_ID_CHARS}
"""Id of a row, a client or a delta."""
CURSOR: dict[str, Any] = {"type": "string", "pattern": "^(now|[0-9]{1,18}-[0-9]{1,18}(-[0-9]{1,18}-[0-9]{1,18})?)$"}
"""Cursor of the route `peek`, which reads rows without effects; opaque to the client."""
CONNECTOR: dict[str, Any] = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"}
"""Name of a connector, which reaches an external system."""

JSON = "application/json"
PROTOBUF = "application/x-protobuf"

_SCHEMA_KEYWORDS: dict[str, dict[str, Any]] = {
    "table": IDENTIFIER,
    "sourceTable": IDENTIFIER,
    "externalIdColumn": IDENTIFIER,
    "columns": {"minItems": 1},
    "primaryKey": {"minItems": 1, "uniqueItems": True, "items": IDENTIFIER},
}
"""The keywords of a table's schema in `PROPERTY_KEYWORDS`."""

PROPERTY_KEYWORDS: dict[str, dict[str, dict[str, Any]]] = {
    "SyncPush": {"clientId": ID, "deltas": {"maxItems": EngineLimits().max_deltas}},
    "SyncPull": {"clientId": ID, "maxDeltas": {"minimum": 1, "maximum": MAX_PULL}},
    "RowDelta": {"table": IDENTIFIER, "rowId": ID, "clientId": ID, "deltaId": ID},
    "ColumnValue": {
        "column": IDENTIFIER,
        "value": {"description": f"Any JSON value of finite numbers, at most {MAX_DEPTH} lists and objects deep"},
    },
    "TableSchema": _SCHEMA_KEYWORDS,
    "SchemaBody": _SCHEMA_KEYWORDS,
    "Column": {"name": IDENTIFIER, "references": REFERENCE},
    "ColumnBody": {"name": IDENTIFIER, "references": REFERENCE},
    "Reference": {"table": IDENTIFIER, "column": IDENTIFIER},
    "ActionPush": {"clientId": ID, "actions": {"maxItems": ActionLimits().max_actions}},
    "Action": {
        "clientId": ID,
        "connector": ID,
        "actionType": ID,
        "actionId": ID,
        "idempotencyKey": ID,
        "params": {"type": "object", "description": "As the params schema in the answer of GET …/actions says"},
    },
    "Connector": {
        "name": CONNECTOR,
        "type": {
            "enum": [each.descriptor.type for each in BUILT_IN],
            "description": "Or a type of an installed package",
        },
    },
    "SyncRules": {"version": {"minimum": 1}},
    "Bucket": {"name": {"minLength": 1, "maxLength": MAX_NAME_CHARS}, "tables": {"items": IDENTIFIER}},
    "Filter": {"column": IDENTIFIER, "value": {"not": {"const": CLAIM_PREFIX}}},
}
"""JSON Schema keywords to add: name of the msgspec type → property → keywords."""

OBJECT_KEYWORDS: dict[str, dict[str, Any]] = {
    "RowDelta": {
        "if": {"properties": {"op": {"const": "DELETE"}}},
        "then": {"properties": {"columns": {"maxItems": 0}}},
    },
    "SyncPull": {"required": ["clientId"]},
    "Connector": {
        "oneOf": [
            {
                "properties": {
                    "name": {},
                    "type": {"const": each.type},
                    each.type: each.config_schema,
                    "ingest": {"anyOf": [each.ingest_schema, {"type": "null"}]},
                },
                "required": [each.type],
                "additionalProperties": False,
            }
            for each in (connector_type.descriptor for connector_type in BUILT_IN)
        ],
    },
}
"""JSON Schema keywords to add: name of the msgspec type → keywords of the whole object."""


class StructSchema:
    """An annotation that lets FastAPI document and encode a msgspec type, which pydantic does not support.

    FastAPI's models are pydantic's. The engine's records are msgspec structs, which decode a push several times faster.
    This class describes them by `msgspec.json.schema` and encodes them by LakeSync's own JSON rules.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept the value unchanged; encode it as the wire does."""
        encode = core_schema.plain_serializer_function_ser_schema(_to_builtins)
        return core_schema.no_info_plain_validator_function(
            lambda value: value, metadata={"struct": source}, serialization=encode
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe the type."""
        return struct_schema(schema["metadata"]["struct"], HLC_IN_RESPONSE)


T = TypeVar("T")
Struct: TypeAlias = Annotated[T, StructSchema()]
"""A msgspec type as a response model, or as a field of one: `Struct[SyncRules]`."""

Hlc: TypeAlias = Annotated[int, PlainSerializer(str), WithJsonSchema(HLC_IN_RESPONSE)]
"""A hybrid logical clock in a pydantic model."""


Identifier: TypeAlias = Annotated[str, WithJsonSchema(IDENTIFIER)]
"""Name of a table."""
AnyId: TypeAlias = Annotated[str, WithJsonSchema(ID)]
"""Id of a row or a client."""


class ApiModel(BaseModel):
    """A body whose keys are written in camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, frozen=True)


def check_digits(text: Any) -> Any:
    """Reject numbers that pydantic accepts and JSON does not, such as `+1` and `1_000`; a validator for queries."""
    if isinstance(text, str) and not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ValueError("it must be a whole number in decimal digits")
    return text


DIGITS = BeforeValidator(check_digits)
"""Marks a query parameter that is a whole number."""


def struct_schema(kind: Any, hlc: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a msgspec type, with the definitions that it refers to in place.

    Args:
        kind: a struct, or any type that msgspec encodes.
        hlc: JSON Schema of hybrid logical clocks, which are integers in the struct.
    """
    (schema,), components = msgspec.json.schema_components([kind], ref_template="{name}", schema_hook=_raw_schema)
    _add_keywords(components, hlc)
    resolved: dict[str, Any] = _resolve(schema, components)
    return resolved


def _resolve(schema: Any, components: dict[str, dict[str, Any]]) -> Any:
    """Return a JSON schema in which each `$ref` is replaced by the component that it names."""
    if isinstance(schema, list):
        return [_resolve(each, components) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _resolve(components[schema["$ref"]], components)
    return {name: _resolve(value, components) for name, value in schema.items()}


def _raw_schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of `msgspec.Raw`, which may be any JSON value; msgspec calls it for types of its own."""
    if kind is msgspec.Raw:
        return {}
    raise NotImplementedError(kind)  # by which msgspec recognises a type that it cannot describe


def _to_builtins(value: Any) -> Any:
    """Convert a struct to dicts, lists and JSON values by the rules of the wire, as pydantic's serialiser needs it."""
    return msgspec.json.decode(encode_json(value))


def request_body(kind: Any, *media: str) -> dict[str, Any]:
    """Return the OpenAPI description of a body that the route decodes itself.

    Args:
        kind: msgspec type of the JSON body.
        media: media types besides JSON.
    """
    content = {JSON: {"schema": struct_schema(kind, HLC)}, **{each: {} for each in media}}
    return {"requestBody": {"required": True, "content": content}}


def query_parameter(name: str, description: str, schema: dict[str, Any], **details: Any) -> dict[str, Any]:
    """Return the OpenAPI description of a query parameter that the route reads itself.

    Args:
        name: the parameter's name.
        description: what the parameter means.
        schema: JSON Schema of the parameter's value.
        details: further OpenAPI keywords, such as `required`.
    """
    return {"name": name, "in": "query", "description": description, "required": False, "schema": schema, **details}


def example(value: str) -> dict[str, Example]:
    """Return a parameter's only example.

    Args:
        value: a value that works on the gateway of the documentation's examples.
    """
    return {"example": {"value": value}}


def header_parameter(name: str, description: str) -> dict[str, Any]:
    """Return the OpenAPI description of an optional request header.

    Args:
        name: the header's name.
        description: what the header means.
    """
    return {"name": name, "in": "header", "description": description, "required": False, "schema": {"type": "string"}}


_ALWAYS: tuple[type[LakeSyncError], ...] = (errors.StagingUnavailableError, LakeSyncError)
"""Errors that every route may raise."""
_ERROR_REF = {"$ref": "#/components/schemas/ErrorBody"}
SERVICE_ERRORS: tuple[type[LakeSyncError], ...] = (errors.AuthError, errors.ForbiddenError)
"""Errors that the check of the service token may raise."""
CALLER_ERRORS: tuple[type[LakeSyncError], ...] = (
    errors.ValidationError,
    errors.AuthError,
    errors.ForbiddenError,
    errors.NotFoundError,
    errors.RateLimitedError,
)
"""Errors that the authentication of a client or admin may raise."""


def error_responses(*kinds: type[LakeSyncError]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a route's errors, and of those that every route may raise.

    Args:
        kinds: classes of errors that the route may raise.
    """
    codes: dict[int, set[str]] = {}
    for kind in (*kinds, *_ALWAYS):
        codes.setdefault(status_of(kind), set()).add(kind.code)
    return {
        status: {"description": ", ".join(sorted(names)), "content": {JSON: {"schema": _ERROR_REF}}}
        for status, names in sorted(codes.items())
    }


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return FastAPI's OpenAPI document without FastAPI's 422 responses: the gateway rejects parameters with 400.

    Args:
        app: the application whose routes are described.
    """
    document = get_openapi(title=app.title, version=app.version, routes=app.routes, servers=app.servers)
    for path in document["paths"].values():
        for operation in path.values():
            schema = operation["responses"].get("422", {}).get("content", {}).get(JSON, {}).get("schema")
            if schema == {"$ref": "#/components/schemas/HTTPValidationError"}:
                del operation["responses"]["422"]
    schemas: dict[str, Any] = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["ErrorBody"] = struct_schema(ErrorBody, HLC_IN_RESPONSE)
    return document


def _add_keywords(components: dict[str, dict[str, Any]], hlc: dict[str, Any]) -> None:
    """Add patterns, ranges and conditions that msgspec's types do not express."""
    for name, component in components.items():
        properties: dict[str, Any] = component.get("properties", {})
        for key, described in properties.items():
            if key == "hlc" or key.endswith("Hlc"):
                nullable = {"type": "null"} in described.get("anyOf", ())
                properties[key] = {"anyOf": [hlc, {"type": "null"}]} if nullable else hlc
        for key, keywords in PROPERTY_KEYWORDS.get(name, {}).items():
            _without_null(properties[key]).update(keywords)
        component.update(OBJECT_KEYWORDS.get(name, {}))


def _without_null(described: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the value itself, if the property's schema also allows null, which msgspec puts last."""
    branches: list[dict[str, Any]] = described.get("anyOf", [described])
    return branches[0]
