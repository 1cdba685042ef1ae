"""`GET /console` and the files of its page, under every prefix. The page holds nothing: it asks the admin routes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.exchange import Exchange
from gateway.operations import PREFIXES
from lakesync.model.errors import NotFoundError

_INDEX = "index.html"
_PAGE = Path(__file__).with_name("page")
_MEDIA = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FILES = {
    file.name: (file.read_bytes(), _MEDIA[file.suffix]) for file in sorted(_PAGE.iterdir()) if file.suffix in _MEDIA
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page loads its own files, asks its own gateway, and nothing else."""


async def _file(request: Request, name: str | None = None) -> Response:
    exchange = Exchange.of(request)
    exchange.route, exchange.policy = "/console", _POLICY
    asked = name or request.path_params["file"]
    if asked not in _FILES or (name is None and asked == _INDEX):  # there its links would lead elsewhere
        raise NotFoundError(f"the console has no file {asked!r}; the page is /console")
    content, media = _FILES[asked]
    return Response(content, media_type=media)


def routes() -> list[Route]:
    """The Starlette routes."""
    return [
        route
        for prefix in PREFIXES
        for route in (
            Route(f"{prefix}/console", partial(_file, name=_INDEX), methods=["GET"], name=f"console {prefix}"),
            Route(f"{prefix}/console/{{file}}", _file, methods=["GET"], name=f"console file {prefix}"),
        )
    ]
