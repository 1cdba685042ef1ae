"""The routes `/admin/sync-rules/{gateway}`: an admin reads and activates sync rules."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from gateway.dependencies import AdminCaller
from gateway.openapi_schemas import CALLER_ERRORS, ApiModel, Struct, error_responses, request_body
from gateway.request_body import JsonBody
from lakesync.model.errors import PayloadTooLargeError
from lakesync.rules.model import SyncRules, parse_rules

router = APIRouter(prefix="/admin/sync-rules/{gateway}")


class ActiveRules(ApiModel):
    """The active rules of a gateway; null and 0 before any were set."""

    rules: Struct[SyncRules] | None
    rules_version: int
    """Incremented by every change; not the version inside the rules."""


class SavedRules(ApiModel):
    """The answer to new rules."""

    saved: bool
    rules_version: int


@router.get("", summary="Read the sync rules", responses=error_responses(*CALLER_ERRORS))
async def read_rules(caller: AdminCaller) -> ActiveRules:
    """Return the active sync rules."""
    config = await run_in_threadpool(caller.gateway.config)
    return ActiveRules(rules=config.rules, rules_version=config.rules_version)


@router.post(
    "",
    summary="Activate sync rules",
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError),
    openapi_extra=request_body(SyncRules),
)
async def set_rules(caller: AdminCaller, body: JsonBody) -> SavedRules:
    """Activate sync rules. Clients gain and lose rows accordingly."""
    version = await run_in_threadpool(caller.gateway.set_rules, parse_rules(body))
    return SavedRules(saved=True, rules_version=version)
