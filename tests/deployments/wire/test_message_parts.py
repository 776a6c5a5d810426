"""Which parts of a request are not text, and how long they are."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.wire.message_parts import media_lengths

URL = "data:image/png;base64,AAAA"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def chat(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts]}]}


@pytest.mark.parametrize(
    ("fields", "lengths"),
    [
        (chat({"type": "text", "text": "a"}, IMAGE), [len("image_url" + URL)]),
        (chat(BLOCK, BLOCK), [len("image" + "base64" + "image/png" + "AAAA")] * 2),
        (chat({"type": "tool_result", "content": [BLOCK]}), [24]),
        (chat({"type": "tool_result", "content": "a"}, {"type": "tool_use", "input": {}}), []),
        ({"input": [{"content": [{"type": "input_image", "image_url": URL}]}]}, [37]),
        ({"input": [{"output": [{"type": "output_text", "text": "a"}]}]}, []),
        ({"inputs": [{"content": [IMAGE]}], "images": [URL, 5]}, [35, 26, 0]),
        ({"messages": "a", "input": 5, "images": {}}, []),
    ],
)
def test_media_have_the_length_of_their_strings(fields: dict[str, Any], lengths: list[int]) -> None:
    assert media_lengths(fields) == lengths
