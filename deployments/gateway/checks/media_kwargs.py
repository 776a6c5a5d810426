"""Rejects settings of media with which a small image would take much memory in an engine.

`media_io_kwargs` choose how vLLM decodes, and `mm_processor_kwargs` go to the model's own
processor: some resize each image to a size of the client's choice. Operators can set any of them in
the pool's `engine_args`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from deployments.gateway.api.request_codes import FIELD_NOT_ALLOWED, INVALID_VALUE
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.field_table import taken_by

_IO, _PROCESSOR = "media_io_kwargs", "mm_processor_kwargs"
# Other keys choose a decoder or a device.
IO_KEYS: Mapping[str, tuple[str, ...]] = {
    "image": ("image_mode", "rgba_background_color"),
    "video": (
        *("num_frames", "fps", "min_frames", "max_frames", "max_duration"),
        *("frames_indices", "total_num_frames", "duration", "do_sample_frames"),
    ),
    "audio": (),
}
_PIXELS, _FRAMES, _CROPS = 2**20, 1024, 40
# Each key with its largest value. Models resize small images to at least `min_pixels`.
PROCESSOR_KEYS: Mapping[str, int] = {
    "min_pixels": _PIXELS,
    "max_pixels": 16 * _PIXELS,
    **dict.fromkeys(("fps", "num_frames", "min_frames", "max_frames"), _FRAMES),
    **dict.fromkeys(("num_crops", "max_crops", "min_dynamic_patch", "max_dynamic_patch"), _CROPS),
    **dict.fromkeys(("do_sample_frames", "use_audio_in_video", "dynamic_image_size"), 1),
    **dict.fromkeys(("do_pan_and_scan", "crop_to_patches", "do_image_splitting"), 1),
}


def refuse_media_kwargs(path: str, fields: Mapping[str, Any]) -> None:
    """Raises ApiError 400 for such a setting. Never raises another error."""
    known = taken_by(path)
    for kind, settings in _items(fields, _IO) if _IO in known else ():
        for key in settings if isinstance(settings, dict) else ():
            if key not in IO_KEYS.get(kind, ()):
                _refuse_key(_IO, key)
    for key, value in _items(fields, _PROCESSOR) if _PROCESSOR in known else ():
        if key not in PROCESSOR_KEYS:
            _refuse_key(_PROCESSOR, key)
        # a comparison with NaN is false
        if value is not None and not (
            isinstance(value, int | float) and 0 <= value <= PROCESSOR_KEYS[key]
        ):
            message = (
                f"{key!r} in {_PROCESSOR!r} must be a number from 0 to {PROCESSOR_KEYS[key]:,}."
                " Correct it, or omit it."
            )
            raise ApiError(INVALID_VALUE, message, param=_PROCESSOR)


def _items(fields: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    value = fields.get(name)
    return list(value.items()) if isinstance(value, dict) else []


def _refuse_key(name: str, key: str) -> NoReturn:
    message = (
        f"{name!r} must not contain the key {key[:100]!r}. Omit it, or ask the operators to set it"
        " in the model's 'engine_args'."
    )
    raise ApiError(FIELD_NOT_ALLOWED, message, param=name)
