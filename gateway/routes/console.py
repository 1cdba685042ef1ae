"""`/console`: the operators' page. It holds no data: it calls the admin routes with the operator's token."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response

from gateway.request_log import RequestRecord
from lakesync.model.errors import NotFoundError

router = APIRouter(prefix="/console", include_in_schema=False)

_INDEX = "index.html"
_PAGE = Path(__file__).parents[1] / "console" / "page"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FILES = {
    file.name: (file.read_bytes(), _MEDIA_TYPES[file.suffix])
    for file in sorted(_PAGE.iterdir())
    if file.suffix in _MEDIA_TYPES
}
_CONTENT_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page loads its own files and calls its own gateway, nothing else."""


@router.get("")
async def page(request: Request) -> Response:
    """Return the page."""
    return _file(request, _INDEX)


@router.get("/{file}")
async def page_file(request: Request, file: str) -> Response:
    """Return a file of the page. The page itself is at `/console` only: its relative links work there."""
    if file not in _FILES or file == _INDEX:
        RequestRecord.of(request).content_policy = _CONTENT_POLICY
        raise NotFoundError(f"the console has no file {file!r}; the page is /console")
    return _file(request, file)


def _file(request: Request, name: str) -> Response:
    RequestRecord.of(request).content_policy = _CONTENT_POLICY
    content, media_type = _FILES[name]
    return Response(content, media_type=media_type)
