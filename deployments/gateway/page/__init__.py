"""The page at /antefix/ that shows what a fleet does, and why.

It consists of static files without secrets: the page calls the API with a key that its user enters.
It loads nothing from other hosts and has no inline script or style. The headers make browsers
enforce this.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from deployments.gateway.api import endpoints
from deployments.gateway.api.request_headers import ACCEPT, IF_NONE_MATCH
from deployments.gateway.api.response_headers import (
    CACHE_CONTROL,
    CONTENT_SECURITY_POLICY,
    CONTENT_TYPE_OPTIONS,
    ETAG,
    LOCATION,
    REFERRER_POLICY,
    VARY,
)

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Mapping[str, str] = {
    CONTENT_SECURITY_POLICY: "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    # names that users chose can never become markup, even if the page has a bug
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    CONTENT_TYPE_OPTIONS: "nosniff",
    REFERRER_POLICY: "no-referrer",
    # browsers revalidate each time and get 304, so they never mix files of two releases
    CACHE_CONTROL: "no-cache",
}


# The chart sets it in each pod; on a single machine it is unset.
PLATFORM = "ANTEFIX_PLATFORM"
_LOCAL, _KUBERNETES = b'data-platform="local"', b'data-platform="kubernetes"'


def add_page(app: Starlette, platform: str = "") -> None:
    """Serve the page at /antefix/, its files at /antefix/assets/NAME; redirect browsers from /.

    `platform`: "kubernetes" or "". The page's hints name commands for that platform.
    """
    for file in Path(__file__).parent.iterdir():
        if media_type := _MEDIA_TYPES.get(file.suffix):
            endpoint = endpoints.PAGE
            if file.name != "index.html":
                route = endpoints.PAGE_FILE.route.replace("{file}", file.name)
                endpoint = endpoints.PAGE_FILE._replace(route=route)
            content = file.read_bytes()
            if platform == "kubernetes":
                content = content.replace(_LOCAL, _KUBERNETES)
            endpoint.add_to(app, partial(_answer, content, media_type))
    endpoints.ROOT.add_to(app, _lead_browsers_here)


async def _lead_browsers_here(request: Request) -> Response:
    """Redirect to the page. Raises HTTPException 404 for clients that do not accept HTML."""
    if not asks_for_html(request.headers.get(ACCEPT, "")):
        raise HTTPException(404)
    headers: dict[str, str] = {LOCATION: "antefix/", VARY: "accept", CACHE_CONTROL: "no-cache"}
    return Response(status_code=307, headers=headers)


def asks_for_html(accept: str) -> bool:
    """Return whether an Accept header names HTML, as browsers' do. API clients send `*/*`."""
    for media_range in accept.split(","):
        name, *parameters = (part.strip().lower() for part in media_range.split(";"))
        if name in ("text/html", "application/xhtml+xml"):
            return not any(re.fullmatch(r"q\s*=\s*0(\.0*)?", part) for part in parameters)
    return False


async def _answer(content: bytes, media_type: str, request: Request) -> Response:
    headers: dict[str, str] = {**_HEADERS, ETAG: f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
    if headers[ETAG] in request.headers.get(IF_NONE_MATCH, ""):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)
