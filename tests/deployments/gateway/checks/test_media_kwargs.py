"""A client cannot let an engine make a large image of a small one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.checks.media_kwargs import refuse_media_kwargs
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.inference_paths import CHAT, MESSAGES, RESPONSES
from tests.sentences import assert_sentences


@pytest.mark.parametrize("path", [CHAT, RESPONSES, "/rerank", "/pooling"])
@pytest.mark.parametrize(
    "value",
    [
        {"max_pixels": 10**12},
        {"min_pixels": 2**26},
        {"max_pixels": "1e12"},
        {"min_pixels": float("nan")},
        {"num_crops": 1000},
        {"fps": -1},
        {"size": {"height": 100_000, "width": 100_000}},
        {"images_kwargs": {"max_pixels": 10**12}},
        {"do_rescale": False},
    ],
)
def test_processor_settings_that_enlarge_images_are_rejected(
    path: str, value: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as refused:
        refuse_media_kwargs(path, {"mm_processor_kwargs": value})
    assert (refused.value.status, refused.value.param) == (400, "mm_processor_kwargs")
    assert f"'{next(iter(value))}'" in refused.value.message
    assert_sentences(refused.value.message)


@pytest.mark.parametrize(
    "value",
    [
        {"video": {"video_backend": "pynvvideocodec"}},
        {"video": {"num_frames": 4, "device": "cuda"}},
        {"audio": {"audio_backend": "pyav"}},
        {"of tomorrow": {"a": 1}},
    ],
)
def test_a_client_cannot_choose_the_decoder(value: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        refuse_media_kwargs(CHAT, {"media_io_kwargs": value})
    assert (refused.value.status, refused.value.param) == (400, "media_io_kwargs")
    assert_sentences(refused.value.message)


@pytest.mark.parametrize(
    "fields",
    [
        {"mm_processor_kwargs": {"fps": 2, "do_sample_frames": True, "max_pixels": 1_003_520}},
        {"mm_processor_kwargs": {"min_pixels": 3136.0, "use_audio_in_video": False}},
        {"mm_processor_kwargs": None, "media_io_kwargs": None},
        {"mm_processor_kwargs": {}, "media_io_kwargs": {"video": {"num_frames": -1}}},
        {"media_io_kwargs": {"image": {"image_mode": None, "rgba_background_color": [0, 0, 0]}}},
        {"media_io_kwargs": {"video": {"num_frames": 8, "fps": 1}, "audio": {}}},
    ],
)
def test_processor_settings_for_one_image_pass(fields: dict[str, Any]) -> None:
    refuse_media_kwargs(CHAT, fields)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
NAMED = st.dictionaries(st.sampled_from(["max_pixels", "fps", "video", "image"]), ANYTHING)


@given(
    fields=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("media_io_kwargs", "mm_processor_kwargs"), ANYTHING | NAMED)
    ),
    path=st.sampled_from([CHAT, MESSAGES]),
)
def test_any_processor_setting_passes_or_is_rejected(fields: dict[str, Any], path: str) -> None:
    try:
        refuse_media_kwargs(path, fields)
    except ApiError as refused:
        assert refused.param in fields
