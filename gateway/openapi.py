"""The OpenAPI document, made of the same table as the routes."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from gateway.errors import ErrorBody, status_of
from gateway.forms import GATEWAY, refine
from gateway.operations import JSON, PREFIXES, Operation, Parameter
from lakesync.model import errors
from lakesync.model.errors import LakeSyncError

_REF = "#/components/schemas/{name}"
_ALWAYS: tuple[type[LakeSyncError], ...] = (errors.StagingUnavailableError, LakeSyncError)
_BY_ACCESS: dict[str, tuple[type[LakeSyncError], ...]] = {
    "open": (),
    "service": (errors.AuthError, errors.ForbiddenError),
    "client": (
        errors.ValidationError,
        errors.AuthError,
        errors.ForbiddenError,
        errors.NotFoundError,
        errors.RateLimitedError,
    ),
}
_BY_ACCESS["admin"] = _BY_ACCESS["client"]
_SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "open": [],
    "service": [{"service": []}],
    "client": [{"token": []}],
    "admin": [{"token": []}],
}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """OpenAPI 3.1 for all operations."""
    operations = tuple(operations)
    types = [kind for operation in operations for kind in (operation.body, operation.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components([ErrorBody, *types], ref_template=_REF, schema_hook=_any)
    refine(components)
    spelled = dict(zip(map(str, types), schemas[1:], strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, spelled, schemas[0])
    return {
        "openapi": "3.1.0",
        "info": {"title": "LakeSync gateway", "version": version("lakesync")},
        "servers": [{"url": prefix or "/"} for prefix in reversed(PREFIXES)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "service": {"type": "http", "scheme": "bearer", "description": "LAKESYNC_SERVICE_TOKEN"},
            },
        },
    }


def _operation(operation: Operation, spelled: dict[str, Any], error: dict[str, Any]) -> dict[str, Any]:
    answer_media = operation.answer_media or operation.media
    answer = spelled[str(operation.answer)] if operation.answer is not None else {}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.endpoint.__name__,
        "security": _SECURITY[operation.access],
        "parameters": [*_path_parameters(operation), *map(_parameter, operation.parameters)],
        "responses": {
            str(operation.status): {
                "description": operation.summary,
                "content": {media: _media(media, answer) for media in answer_media},
                "headers": {
                    header.name: {"description": header.description, "schema": header.schema}
                    for header in operation.answer_headers
                },
            },
            **_error_responses(operation, error),
        },
    }
    if operation.access == "admin":
        described["description"] = "Needs a token with role admin."
    if operation.body is not None:
        content = {media: _media(media, spelled[str(operation.body)]) for media in operation.media}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _media(media: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"schema": schema} if media == JSON else {}


def _error_responses(operation: Operation, schema: dict[str, Any]) -> dict[str, Any]:
    codes: dict[int, set[str]] = {}
    implied = (*_BY_ACCESS[operation.access], *operation.errors, *_ALWAYS)
    for kind in implied:
        codes.setdefault(status_of(kind), set()).add(kind.code)
    return {
        str(status): {"description": ", ".join(sorted(names)), "content": {JSON: {"schema": schema}}}
        for status, names in sorted(codes.items())
    }


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    told = {parameter.name for parameter in operation.parameters if parameter.place == "path"}
    return [
        {"name": name, "in": "path", "required": True, "schema": GATEWAY if name == "gateway" else {"type": "string"}}
        for name in names
        if name not in told
    ]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.description,
        "required": parameter.required or parameter.place == "path",
    }
    if parameter.as_json:
        described["content"] = {JSON: {"schema": parameter.schema}}
    else:
        described["schema"] = parameter.schema
    if parameter.example is not None:
        described["example"] = parameter.example
    return described


def _any(kind: type) -> dict[str, Any]:
    if kind is msgspec.Raw:
        return {}
    raise NotImplementedError(kind)
