"""The OpenAPI document, made of the same table as the routes."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from gateway.errors import ErrorBody, status_of
from gateway.operations import JSON, PREFIXES, Operation, Parameter
from lakesync import exceptions as errors
from lakesync.exceptions import LakeSyncError

HLC_SCHEMA: dict[str, Any] = {
    "type": ["string", "integer"],
    "description": "64 bits as a decimal string; a bare integer is accepted too",
}
_REF = "#/components/schemas/{name}"
_GATEWAY = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
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
    for component in components.values():
        _mark_hlcs(component)
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
        "parameters": [*_path_parameters(operation.path), *map(_parameter, operation.parameters)],
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


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": _GATEWAY if name == "gateway" else {"type": "string"}}
        for name in names
    ]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.description,
        "required": parameter.required,
        "schema": parameter.schema,
    }


def _any(kind: type) -> dict[str, Any]:
    if kind is msgspec.Raw:
        return {}
    raise NotImplementedError(kind)


def _mark_hlcs(component: dict[str, Any]) -> None:
    properties: dict[str, Any] = component.get("properties", {})
    for name in properties:
        if name == "hlc" or name.endswith("Hlc"):
            properties[name] = HLC_SCHEMA
