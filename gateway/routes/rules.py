"""Sync rules: an admin reads and sets them."""

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
from lakesync.rules.model import SyncRules, parse_rules


class RulesInForce(msgspec.Struct, frozen=True, rename="camel"):
    """The rules of a gateway; null and 0 before any were set."""

    rules: SyncRules | None
    rules_version: int
    """Counts every change, unlike the version inside the rules."""


class SavedRules(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to new rules."""

    saved: bool
    rules_version: int


async def read_rules(request: Request) -> Response:
    """The rules in force."""
    caller = await admit(request, admin=True)
    config = await run_in_threadpool(caller.gateway.config)
    return bodies.json_response(RulesInForce(config.rules, config.rules_version))


async def set_rules(request: Request) -> Response:
    """Put rules in force."""
    caller = await admit(request, admin=True)
    rules = parse_rules(await bodies.read_object(request, Services.of(request).settings.max_body_bytes))
    version = await run_in_threadpool(caller.gateway.set_rules, rules)
    return bodies.json_response(SavedRules(True, version))


OPERATIONS = (
    Operation(
        "GET", "/admin/sync-rules/{gateway}", read_rules, "Read the sync rules", access="admin", answer=RulesInForce
    ),
    Operation(
        "POST",
        "/admin/sync-rules/{gateway}",
        set_rules,
        "Put sync rules in force",
        access="admin",
        body=SyncRules,
        answer=SavedRules,
        errors=(ValidationError, PayloadTooLargeError),
    ),
)
