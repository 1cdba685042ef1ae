"""The pages for browsers: `/console` for operators, and `/docs`, Swagger UI over the routes' `/openapi.json`.

Pages are served from files, with a Content-Security-Policy for pages. A gateway is one app's stream of changes. The
console calls the admin routes with the operator's token. `create_app` includes the router.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import fastapi_offline
from fastapi import APIRouter, Request, Response

from gateway.openapi_schemas import error_responses
from gateway.request_log import RequestRecord
from lakesync.model.errors import NotFoundError

_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_INDEX = "index.html"
_CONTENT_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A page loads its own files and calls its own gateway, nothing else."""


class Page:
    """A page and the files that it links by relative URLs."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Collect the files.

        Args:
            files: the page's files, `index.html` among them. Only HTML, CSS and JavaScript are served.
        """
        self._files = {file.name: file for file in files if file.suffix in _MEDIA_TYPES}
        self._index = self._files.pop(_INDEX)

    def index(self, request: Request) -> Response:
        """Return the page itself."""
        return _file_response(request, self._index)

    def file(self, request: Request, file: str) -> Response:
        """Return a file that the page links. `index.html` is not served so, because its relative links would break.

        Args:
            request: the browser's request.
            file: the file's name.

        Raises:
            NotFoundError: the page has no such file.
        """
        if file not in self._files:
            RequestRecord.of(request).content_policy = _CONTENT_POLICY
            raise NotFoundError(f"the page {request.url.path.rpartition('/')[0]} has no file {file!r}")
        return _file_response(request, self._files[file])


def _file_response(request: Request, file: Path) -> Response:
    """Respond with a file of a page, compressed if the browser accepts it."""
    RequestRecord.of(request).content_policy = _CONTENT_POLICY
    content, compressed = _content(file)
    headers = {"Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = compressed, "gzip"
    return Response(content, headers=headers, media_type=_MEDIA_TYPES[file.suffix])


@cache
def _content(file: Path) -> tuple[bytes, bytes]:
    """Return a file's content and its gzipped content, which is compressed only once."""
    content = file.read_bytes()
    return content, gzip.compress(content, mtime=0)


router = APIRouter()

_CONSOLE = Page((Path(__file__).parents[1] / "console_page").iterdir())
"""The console, which shows how far a gateway and its clients are, and why a client has or lacks a row."""
_SWAGGER_UI = Path(fastapi_offline.__file__).parent / "static"
"""Folder of the package fastapi-offline with Swagger UI's files, so that a browser loads them from this server."""
_DOCS = Page(
    [
        *(Path(__file__).parents[1] / "docs_page").iterdir(),
        *(_SWAGGER_UI / name for name in ("swagger-ui-bundle.js", "swagger-ui.css")),
    ]
)
"""Swagger UI over `openapi.json`, which the browser finds beside the page."""


for path, page in (("/console", _CONSOLE), ("/docs", _DOCS)):
    router.add_api_route(path, page.index, include_in_schema=False)
    router.add_api_route(path + "/{file}", page.file, include_in_schema=False)


@router.get("/openapi.json", summary="Read this document", response_model=dict[str, Any], responses=error_responses())
def openapi(request: Request) -> Any:
    """Return the OpenAPI document of all routes."""
    return request.app.openapi()
