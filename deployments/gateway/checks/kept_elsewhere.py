"""Rejects references to stored files, items and audio answers in messages.

Antefix stores nothing, and engines read no files. Some models' engines silently ignore such a
reference; others reject it after its placement. The error says what to send instead. A part that
contains the data itself passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from deployments.gateway.api.request_codes import FIELD_NOT_ALLOWED
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.inference_paths import RESPONSES, inference_path
from deployments.wire.message_parts import messages_in, parts_in

FILES = ("file", "input_file", "image_file")
ANTHROPIC_FILES = ("document", "container_upload")
ITEM_REFERENCE = "item_reference"
_MEDIA = ("image_url", "input_image", "audio_url", "input_audio", "video_url", "image")
# Fields that hold media or a file id. Anthropic's `image` has them in `source`.
_HOLDERS = ("image_url", "audio_url", "input_audio", "video_url", "source")
_TEXTS = {"messages": "text", "input": "input_text"}
_IMAGES = {
    "messages": "as a 'data:' URL in a part of type 'image_url'",
    "input": "as a 'data:' URL in a part of type 'input_image'",
}
_ANTHROPIC_IMAGE = "with a 'source' of type 'base64' in a part of type 'image'"


def refuse_kept_elsewhere(path: str, fields: Mapping[str, Any]) -> None:
    """Raises ApiError 400 for such a reference. Never raises another error."""
    is_anthropic = inference_path(path).errors == "anthropic"
    for name in ("messages", "input"):
        for part in parts_in(fields.get(name)):
            _refuse_part(name, part, is_anthropic)
    for message in messages_in(fields.get("messages")):
        if not message.get("content") and _id_of(message.get("audio")) is not None:
            why = (
                "'messages' refers to an audio response by its id, but Antefix does not store any."
            )
            _refuse("messages", why, "Send its transcript in 'content'.")
    for item in messages_in(fields.get("input")) if path == RESPONSES else ():
        if _is_reference(item):
            named = str(item.get("id"))[:100]
            why = f"'input' refers to the item {named!r} by its id, but Antefix does not store any."
            _refuse("input", why, "Send the item itself.")


def _refuse_part(name: str, part: Mapping[str, Any], is_anthropic: bool) -> None:
    kind = part.get("type")
    if kind in FILES or (is_anthropic and kind in ANTHROPIC_FILES):
        why = f"{name!r} contains a part of type {kind!r}, but engines cannot read files."
        as_image = _ANTHROPIC_IMAGE if is_anthropic else _IMAGES[name]
        remedy = f"Send its text in a part of type {_TEXTS[name]!r}, or an image {as_image}."
        _refuse(name, why, remedy)
    if kind in _MEDIA and (file_id := _file_id(part)) is not None:
        why = f"{name!r} refers to the file {file_id[:100]!r}, but Antefix does not store any."
        _refuse(name, why, f"Send its content in the part of type {kind!r}.")


def _file_id(part: Mapping[str, Any]) -> str | None:
    """Return the id of a file whose content is not in the part."""
    holders = [part, *(part.get(name) for name in _HOLDERS)]
    if any(isinstance(holder, str) and holder for holder in holders):
        return None
    objects = [holder for holder in holders if isinstance(holder, dict)]
    if any(holder.get("url") or holder.get("data") for holder in objects):
        return None
    ids = (holder.get("file_id") for holder in objects)
    return next((file_id for file_id in ids if isinstance(file_id, str) and file_id), None)


def _is_reference(item: Mapping[str, Any]) -> bool:
    """Return whether an item is a reference: of that type, or without a type and only an id."""
    if item.get("role") is not None or _id_of(item) is None:
        return False
    kind = item.get("type")
    return kind == ITEM_REFERENCE or (kind is None and not item.keys() - {"id", "type"})


def _id_of(holder: object) -> str | None:
    found = holder.get("id") if isinstance(holder, dict) else None
    return found if isinstance(found, str) and found else None


def _refuse(name: str, why: str, remedy: str) -> NoReturn:
    raise ApiError(FIELD_NOT_ALLOWED, f"{why} {remedy}", param=name)
