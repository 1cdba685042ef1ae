"""The routes of `/console`, the operators' page. The page calls the admin routes with the operator's token."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response

from gateway.page import Page

router = APIRouter(prefix="/console", include_in_schema=False)

_PAGE = Page((Path(__file__).parents[1] / "console" / "page").iterdir())


@router.get("")
async def page(request: Request) -> Response:
    """Return the page."""
    return _PAGE.index(request)


@router.get("/{file}")
async def page_file(request: Request, file: str) -> Response:
    """Return a file of the page."""
    return _PAGE.file(request, file)
