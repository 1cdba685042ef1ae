"""Serves pages for browsers (the console, Swagger UI) from files, with a Content-Security-Policy for pages."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from fastapi import Request, Response

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
        return _answer(request, self._index)

    def file(self, request: Request, name: str) -> Response:
        """Return a file that the page links. `index.html` is not served so, because its relative links would break.

        Args:
            request: the browser's request.
            name: the file's name.

        Raises:
            NotFoundError: the page has no such file.
        """
        if name not in self._files:
            RequestRecord.of(request).content_policy = _CONTENT_POLICY
            raise NotFoundError(f"the page {request.url.path.rpartition('/')[0]} has no file {name!r}")
        return _answer(request, self._files[name])


def _answer(request: Request, file: Path) -> Response:
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
