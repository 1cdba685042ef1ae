"""`/openapi.json` and `/docs`: FastAPI's description of the routes, and Swagger UI to try them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse

from gateway.openapi_schemas import error_responses
from gateway.request_log import RequestRecord

router = APIRouter()

_CONTENT_POLICY = (
    b"default-src 'none'; script-src https: 'unsafe-inline'; style-src https: 'unsafe-inline'; img-src https: data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Swagger UI's files come from the network, as FastAPI's page links them; it calls its own gateway only."""


@router.get("/openapi.json", summary="Read this document", response_model=dict[str, Any], responses=error_responses())
async def openapi(request: Request) -> Any:
    """Return the OpenAPI document of all routes."""
    return request.app.openapi()


@router.get("/docs", include_in_schema=False)
async def swagger_ui(request: Request) -> HTMLResponse:
    """Return Swagger UI's page over `openapi.json`, which the browser finds beside it."""
    RequestRecord.of(request).content_policy = _CONTENT_POLICY
    return get_swagger_ui_html(openapi_url="openapi.json", title=request.app.title)
