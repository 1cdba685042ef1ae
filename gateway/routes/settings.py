"""What an admin sets of a gateway besides schemas, rules and connectors."""

from __future__ import annotations

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import admit
from gateway.operations import Operation
from gateway.services import Services
from lakesync.model.errors import PayloadTooLargeError, ValidationError
from lakesync.staging.records import WriteScope


class SettingsBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Settings of a gateway."""

    write_scope: WriteScope
    """Which rows a client may push to, where there are rules. `visible`: rows that they show it, and new ones;
    `rules`: the same, also as the push makes them; `any`: every row, which lets a client read every row."""


class SavedSettings(msgspec.Struct, frozen=True):
    """The answer to new settings."""

    saved: bool


async def read_settings(request: Request) -> Response:
    """The settings in force."""
    caller = await admit(request, admin=True)
    config = await run_in_threadpool(caller.gateway.config)
    return bodies.json_response(SettingsBody(config.write_scope or caller.gateway.declared_write_scope))


async def set_settings(request: Request) -> Response:
    """Change the settings, for good."""
    caller = await admit(request, admin=True)
    body = await bodies.read_object(request, Services.of(request).settings.max_body_bytes)
    try:
        settings = msgspec.convert(body, SettingsBody)
    except msgspec.ValidationError as error:
        raise ValidationError(f'the settings are {{"writeScope": "visible", "rules" or "any"}}: {error}') from None
    await run_in_threadpool(caller.gateway.set_write_scope, settings.write_scope)
    return bodies.json_response(SavedSettings(True))


OPERATIONS = (
    Operation(
        "GET",
        "/admin/settings/{gateway}",
        read_settings,
        "Read the gateway's settings",
        access="admin",
        answer=SettingsBody,
    ),
    Operation(
        "POST",
        "/admin/settings/{gateway}",
        set_settings,
        "Change the gateway's settings",
        access="admin",
        body=SettingsBody,
        answer=SavedSettings,
        errors=(ValidationError, PayloadTooLargeError),
    ),
)
