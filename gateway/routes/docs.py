"""The routes `/openapi.json`, FastAPI's description of all routes, and `/docs`, Swagger UI to try them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastapi_offline
from fastapi import APIRouter, Request, Response

from gateway.openapi_schemas import error_responses
from gateway.page import Page

router = APIRouter()

_SWAGGER_UI = Path(fastapi_offline.__file__).parent / "static"
_PAGE = Page(
    [
        *(Path(__file__).parents[1] / "docs_page").iterdir(),
        *(_SWAGGER_UI / name for name in ("swagger-ui-bundle.js", "swagger-ui.css")),
    ]
)


@router.get("/openapi.json", summary="Read this document", response_model=dict[str, Any], responses=error_responses())
async def openapi(request: Request) -> Any:
    """Return the OpenAPI document of all routes."""
    return request.app.openapi()


@router.get("/docs", include_in_schema=False)
async def swagger_ui(request: Request) -> Response:
    """Return Swagger UI's page over `openapi.json`, which the browser finds beside it."""
    return _PAGE.index(request)


@router.get("/docs/{file}", include_in_schema=False)
async def swagger_ui_file(request: Request, file: str) -> Response:
    """Return a file of Swagger UI's page."""
    return _PAGE.file(request, file)
