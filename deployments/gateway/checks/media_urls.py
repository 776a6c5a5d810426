"""Rejects images, audio and video that the request only names.

Engines run inside the cluster, so a client's URL could reach hosts that the client cannot. Engines
check again (`deployments.engine.vllm.adapter`). A `uuid` names media in an engine's cache, which
all tenants share: with another tenant's, a client could ask about an image that it does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from deployments.gateway.api.request_codes import (
    FIELD_NOT_ALLOWED,
    INVALID_VALUE,
    MEDIA_URL_NOT_ALLOWED,
)
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.inference_paths import EMBED, inference_path
from deployments.wire.message_parts import parts_in

_FIELDS = ("messages", "input")
_URLS = ("image_url", "audio_url", "video_url")


def refuse_media_urls(path: str, fields: Mapping[str, Any], engine_args: Mapping[str, Any]) -> None:
    """Raises ApiError 400 for a URL that is neither `data:` in base64 nor on an allowed host, and
    for a `uuid`. Also for a `source` that is no object in a tool's result: vLLM would answer 500.

    The pool's `allowed_media_domains` lists the hosts. `allowed_local_media_path` also allows
    `file:`. Never raises another error.
    """
    listed = engine_args.get("allowed_media_domains")
    hosts = {listed} if isinstance(listed, str) else set(listed or ())
    files = bool(engine_args.get("allowed_local_media_path"))
    for name, kind, url in _references_in(path, fields):
        scheme = url[:5].lower()
        if kind == "uuid":
            why = "which is not allowed, because it would let tenants share cached media."
            message = f"{name!r} contains a 'uuid', {why} Send the content without it."
            raise ApiError(FIELD_NOT_ALLOWED, message, param=name)
        if kind == "source":
            message = "An image in a 'tool_result' has a 'source' that is not an object."
            raise ApiError(INVALID_VALUE, f"{message} Send one of type 'base64'.", param=name)
        if scheme == "data:":
            if not url[: url.find(",")].endswith(";base64"):
                why = f"{name!r} contains '{kind}' with data that is not in base64."
                message = f"{why} Send a URL such as 'data:image/png;base64,...'."
                raise ApiError(INVALID_VALUE, message, param=name)
            continue
        if (host := _host_of(url)) not in hosts and not (files and scheme == "file:"):
            instead = "a source of type 'base64'" if kind == "image" else "a 'data:' URL"
            message = (
                f"{name!r} contains '{kind}' on the host {host[:100]!r}, which is not on the"
                f" allowlist of the model. Send {instead}, or ask the operators to add the host to"
                " 'allowed_media_domains' in the model's 'engine_args'."
            )
            raise ApiError(MEDIA_URL_NOT_ALLOWED, message, param=name)


def _references_in(path: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each URL, `uuid` and unusable `source` after its field and its kind."""
    api = inference_path(path)
    for name in (*_FIELDS, *api.documents, *api.shared):
        value = fields.get(name)
        for part in parts_in([value] if isinstance(value, dict) else value):
            if part.get("uuid") is not None:
                yield name, "uuid", ""
            if part.get("type") == "tool_result" and any(map(_has_no_source, parts_in([part]))):
                yield name, "source", ""
            for kind, url in _urls_of(part):
                yield name, kind, url
    images = fields.get("images") if path == EMBED else None
    for url in images if isinstance(images, list) else ():
        if isinstance(url, str):
            yield "images", "image_url", url


def _has_no_source(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "image" and not isinstance(part.get("source", {}), dict)


def _urls_of(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each URL of a part after the field that has it."""
    for kind in _URLS:
        url = part.get(kind)
        if isinstance(url, dict):
            url = url.get("url")
        if isinstance(url, str):
            yield kind, url
    source = part.get("source")  # an image in Anthropic's messages
    if isinstance(source, dict) and isinstance(source.get("url"), str):
        yield "image", source["url"]


def _host_of(url: str) -> str:
    """Return the host of a URL; the URL itself if it has none."""
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return url
