"""The media of one request have a bound together, of every kind and by every route."""

from __future__ import annotations

import asyncio
import base64
import io
import struct
import sys
import wave
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from PIL import Image

from deployments.fleet.pool import Pool
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

MAX_PIXELS = 10_000


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(width: int, height: int, form: str = "PNG", **more: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, form, **more)
    return file.getvalue()


def empty_webp(width: int, height: int) -> bytes:
    """A lossless WebP of one color: 34 bytes for any size."""
    size = (width - 1) | (height - 1) << 14
    bits = b"\x2f" + struct.pack("<I", size) + b"\x88\x88\x08\x00\x00\x00\x00\x00\x00"
    chunk = b"VP8L" + struct.pack("<I", len(bits)) + bits + b"\x00" * (len(bits) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def empty_png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        head = struct.pack(">I", len(data)) + kind + data
        return head + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def icon(width: int, height: int) -> bytes:
    """An icon of 16 x 16, with a larger image inside."""
    inside = empty_png(width, height)
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(inside), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + inside


def wav_bytes(seconds: float, rate: int = 8_000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(rate)
        wav.writeframes(b"\x00\x01" * int(seconds * rate))
    return file.getvalue()


Ask = Callable[[Any], Awaitable[Any]]


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Callable[[Ask], Awaitable[Any]]:
    """Runs what loads media by vLLM's connector, as in one request."""
    from vllm.multimodal.media import MediaConnector, connector
    from vllm.multimodal.video_decoders import base

    from deployments.engine.vllm.api_server import media_bounds

    for name in ("ImageMediaIO", "VideoMediaIO", "AudioMediaIO"):
        monkeypatch.setattr(connector, name, getattr(connector, name))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    for name in ("fetch_audio_async", "load_from_url_async"):
        monkeypatch.setattr(MediaConnector, name, getattr(MediaConnector, name))
    for module in [name for name in sys.modules if name.startswith(str(base.__package__))]:
        if check := getattr(sys.modules[module], "check_frame_pixel_limit", None):
            monkeypatch.setattr(sys.modules[module], "check_frame_pixel_limit", check)
    media_bounds.install(MAX_PIXELS)

    async def in_a_request(ask: Ask) -> Any:
        found: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            # vLLM loads the media of a prompt in tasks, and decodes in threads
            found.append(await asyncio.create_task(_of(ask(MediaConnector()))))

        never: Any = None
        await media_bounds.MediaBounds(app, MAX_PIXELS)({"type": "http"}, never, never)
        return found[0]

    return in_a_request


async def _of(asked: Awaitable[Any]) -> Any:
    return await asked


Bounded = Callable[[Ask], Awaitable[Any]]


async def gather_all(asked: list[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*asked))


async def test_images_within_the_bound_are_loaded(bounded: Bounded) -> None:
    images = [url(image(50, 50)), url(image(50, 50, "JPEG"), "image/jpeg")] * 2
    loaded = await bounded(lambda to: gather_all([to.fetch_image_async(one) for one in images]))
    assert [one.size for one in loaded] == [(50, 50)] * 4


FORMS = ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "TGA", "AVIF"]


@pytest.mark.parametrize("form", FORMS)
async def test_images_of_every_format_count_together(form: str, bounded: Bounded) -> None:
    images = [url(image(60, 60, form))] * 3
    with pytest.raises(ValueError, match="10,800 pixels or more, but at most 10,000 are allowed"):
        await bounded(lambda to: gather_all([to.fetch_image_async(one) for one in images]))


@pytest.mark.parametrize(
    "data",
    [empty_webp(13_000, 13_000), empty_png(20_000, 20_000), icon(20_000, 20_000)],
    ids=["webp", "png", "icon"],
)
async def test_a_small_file_that_decodes_to_a_large_image_is_rejected(
    data: bytes, bounded: Bounded
) -> None:
    assert len(data) < 120
    with pytest.raises(ValueError, match="pixels"):
        await bounded(lambda to: to.fetch_image_async(url(data)))


async def test_pixels_are_counted_separately_for_each_request(bounded: Bounded) -> None:
    for _ in range(3):
        loaded = await bounded(lambda to: to.fetch_image_async(url(image(100, 100))))
        assert loaded.size == (100, 100)


async def test_only_the_frame_that_is_decoded_counts(bounded: Bounded) -> None:
    frames = [Image.new("RGB", (100, 100), (shade, 0, 0)) for shade in range(5)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    loaded = await bounded(lambda to: to.fetch_image_async(url(file.getvalue(), "image/gif")))
    assert loaded.size == (100, 100)


async def test_frames_of_a_video_of_images_count_together(bounded: Bounded) -> None:
    frame = base64.b64encode(image(60, 60, "JPEG")).decode()
    two, three = (f"data:video/jpeg;base64,{','.join([frame] * count)}" for count in (2, 3))
    loaded = await bounded(lambda to: to.fetch_video_async(two))
    assert loaded.media[0].shape == (2, 60, 60, 3)
    with pytest.raises(ValueError, match="10,800 pixels"):
        await bounded(lambda to: to.fetch_video_async(three))


async def test_frames_of_a_video_count_before_they_are_decoded(
    bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np
    from vllm.multimodal.media import MediaConnector
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY, VideoBackend
    from vllm.multimodal.video_decoders import (
        VideoSourceMetadata,
        VideoTargetMetadata,
    )
    from vllm.multimodal.video_decoders import (
        base as decoders,
    )

    decoded: list[int] = []

    class Camera(VideoBackend):  # type: ignore[misc]
        @classmethod
        def load_bytes(cls, data: bytes, num_frames: int = -1, **kwargs: Any) -> Any:
            decoders.check_frame_pixel_limit(60, 60)
            source = VideoSourceMetadata(100, 1.0, 100.0)
            target = VideoTargetMetadata(num_frames, -1, 300)
            frames = cls.compute_frames_index_to_sample(source=source, target=target)
            decoded.extend(frames)
            return np.zeros((len(frames), 60, 60, 3), np.uint8), {}

    monkeypatch.setitem(VIDEO_LOADER_REGISTRY.name2class, "camera", Camera)

    def of(frames: int) -> Ask:
        settings = {"video": {"video_backend": "camera", "num_frames": frames}}
        video = url(b"a video", "video/mp4")
        return lambda to: MediaConnector(settings).fetch_video_async(video)

    await bounded(of(2))
    assert decoded == [0, 99]
    for frames in (3, -1):
        with pytest.raises(ValueError, match="pixels or more"):
            await bounded(of(frames))
    assert decoded == [0, 99]


def several(sounds: list[str]) -> Ask:
    return lambda to: gather_all([to.fetch_audio_async(each) for each in sounds])


async def test_audio_counts_together(bounded: Bounded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MAX_AUDIO_DECODE_BYTES", str(2**20))  # 4 bytes per sample
    sounds = url(wav_bytes(15), "audio/wav")  # 480,000 bytes
    samples, rate = await bounded(lambda to: to.fetch_audio_async(sounds))
    assert (samples.size, rate) == (15 * 8_000, 8_000)
    for count in (3, 8):
        with pytest.raises(ValueError, match="Send fewer or shorter files"):
            await bounded(several([sounds] * count))


async def test_requests_wait_until_another_has_decoded_its_media(bounded: Bounded) -> None:
    from vllm.multimodal.media import MediaConnector

    from deployments.engine.vllm.api_server.media_bounds import MediaBounds, of_request

    queued, ended = asyncio.Event(), asyncio.Event()
    decoded: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        name = scope["path"]
        if name != "text":
            images = [url(image(10, 10))] * 2
            await gather_all([MediaConnector().fetch_image_async(one) for one in images])
        decoded.append(name)
        if name == "first":
            await queued.wait()
            of_request().leave()  # as the engine's queue does
            await ended.wait()

    never: Any = None
    served = MediaBounds(app, MAX_PIXELS, decoding_at_once=1)
    first = asyncio.create_task(served({"type": "http", "path": "first"}, never, never))
    await until(lambda: decoded == ["first"])
    second = asyncio.create_task(served({"type": "http", "path": "second"}, never, never))
    await served({"type": "http", "path": "text"}, never, never)
    assert decoded == ["first", "text"]
    queued.set()
    await second
    assert decoded == ["first", "text", "second"]
    ended.set()
    await first


async def test_requests_that_fail_or_leave_make_room(bounded: Bounded) -> None:
    from vllm.multimodal.media import MediaConnector

    from deployments.engine.vllm.api_server.media_bounds import MediaBounds

    async def app(scope: Any, receive: Any, send: Any) -> None:
        images = [url(image(80, 80))] * scope["images"]
        await gather_all([MediaConnector().fetch_image_async(one) for one in images])

    never: Any = None
    served = MediaBounds(app, MAX_PIXELS, decoding_at_once=1)

    def asked(images: int) -> asyncio.Task[None]:
        return asyncio.create_task(served({"type": "http", "images": images}, never, never))

    for _ in range(3):
        with pytest.raises(ValueError, match="pixels"):
            await asked(3)
        left = asked(1)
        await asyncio.sleep(0)
        left.cancel()
        await asked(1)


BROKEN = {
    "empty": b"",
    "no image": b"Hello",
    "no pixels": empty_png(50, 50),
    "cut": image(50, 50)[:60],
    "no pixels in an icon": icon(50, 50),
    "no blocks": b"GIF89a" + b"\xff" * 50,
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
async def test_what_cannot_be_decoded_is_the_clients_fault(data: bytes, bounded: Bounded) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        await bounded(lambda to: to.fetch_image_async(url(data)))


def test_the_fleet_file_and_the_engine_have_one_default() -> None:
    from deployments.engine.vllm.api_server.media_bounds import MAX_MEDIA_PIXELS

    assert Pool.model_validate({"model": "m"}).max_media_pixels == MAX_MEDIA_PIXELS


def test_a_prompt_has_few_images_unless_the_operators_set_more() -> None:
    from deployments.engine.vllm.api_server.media_bounds import items_per_prompt

    assert items_per_prompt({})["image"] < 999
    assert items_per_prompt({"image": 999, "audio": {"count": 1}}) == {
        **items_per_prompt({}),
        "image": 999,
        "audio": {"count": 1},
    }
