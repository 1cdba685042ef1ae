"""The routes `/admin/settings/{gateway}`: an admin reads and changes which rows clients may write."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from gateway.dependencies import AdminCaller
from gateway.openapi_schemas import CALLER_ERRORS, ApiModel, Struct, error_responses, request_body
from gateway.request_body import JsonBody
from lakesync.model.errors import PayloadTooLargeError, ValidationError
from lakesync.staging.records import WriteScope

router = APIRouter(prefix="/admin/settings/{gateway}")


class SettingsBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Settings of a gateway."""

    write_scope: WriteScope
    """Rows that a client may write where there are rules. `visible`: rows that they show it, and new ones; `rules`: the
    same, also as the push leaves them; `any`: every row, which lets a client read every row."""


class SavedSettings(ApiModel):
    """The answer to new settings."""

    saved: bool


@router.get("", summary="Read the gateway's settings", responses=error_responses(*CALLER_ERRORS))
async def read_settings(caller: AdminCaller) -> Struct[SettingsBody]:
    """Return the settings in force."""
    config = await run_in_threadpool(caller.gateway.config)
    return SettingsBody(config.write_scope or caller.gateway.declared_write_scope)


@router.post(
    "",
    summary="Change the gateway's settings",
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError),
    openapi_extra=request_body(SettingsBody),
)
async def set_settings(caller: AdminCaller, body: JsonBody) -> SavedSettings:
    """Change the settings; they override those of the configuration file, also after a restart."""
    try:
        settings = msgspec.convert(body, SettingsBody)
    except msgspec.ValidationError as error:
        raise ValidationError(f'the settings are {{"writeScope": "visible", "rules" or "any"}}: {error}') from None
    await run_in_threadpool(caller.gateway.set_write_scope, settings.write_scope)
    return SavedSettings(saved=True)
