"""The page at /antefix/ that shows people what a fleet is doing, and why.

Static files, and nothing in them is secret: the page asks the API with the key that its reader
gives it. Nothing is loaded from elsewhere and no script or style is inline, which the headers
hold browsers to.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    # what users named can never become markup, not even by a mistake of ours
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # asked again each time, answered 304: an upgraded gateway has no page of two releases
    "cache-control": "no-cache",
}


def add_page(app: Starlette) -> None:
    """Serve the page at /antefix/, its files at /antefix/assets/NAME."""
    for file in Path(__file__).parent.iterdir():
        if media_type := _MEDIA_TYPES.get(file.suffix):
            path = "/antefix/" + ("" if file.name == "index.html" else f"assets/{file.name}")
            answer = partial(_answer, file.read_bytes(), media_type)
            app.add_route(path, answer, methods=["GET"])


async def _answer(content: bytes, media_type: str, request: Request) -> Response:
    headers = {**_HEADERS, "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
    if headers["etag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)
