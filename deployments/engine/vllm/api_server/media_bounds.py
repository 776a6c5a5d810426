"""Bounds what the images, videos and audio of one request become when they are decoded.

vLLM bounds each image, but not their sum: 34 bytes of WebP can become 1.3 GB, and a body may have
thousands. Here the pixels of all images and video frames of a request are counted before they are
decoded. The samples of all its audio together have at most the bytes that vLLM allows for one file.
A few requests decode at the same time; others wait, until one of them is in the engine's queue and
has tensors in place of its media.
A request beyond a bound, or with media that cannot be decoded, raises ValueError, which vLLM
answers with 400.

vLLM decodes only the first frame of an animated image, so only that one counts. Sources:
vllm/multimodal/media and vllm/multimodal/video_decoders of vLLM 0.32.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from io import BytesIO
from typing import Any

from PIL import Image
from starlette.types import ASGIApp, Receive, Scope, Send
from vllm import envs
from vllm.multimodal.image import open_image
from vllm.multimodal.media import connector
from vllm.multimodal.media.audio import AudioMediaIO, load_audio
from vllm.multimodal.media.base import MediaWithBytes
from vllm.multimodal.media.image import ImageMediaIO
from vllm.multimodal.media.video import VideoMediaIO
from vllm.multimodal.video_decoders import base as video_decoders

# 64 Mpx: 32 frames of 1920 x 1080, or 200 MB as RGB.
MAX_MEDIA_PIXELS = 2**26
# The most items of one prompt if `limit_mm_per_prompt` does not name the modality. vLLM's default
# is 999.
ITEMS_PER_PROMPT: Mapping[str, int] = {"image": 64, "vision_chunk": 64, "audio": 16, "video": 8}
# Requests that decode media at the same time: vLLM decodes in as many threads.
DECODING_AT_ONCE = envs.VLLM_MEDIA_LOADING_THREAD_COUNT
# The most encoded bytes of an image from a URL, per pixel that a request may have.
_BYTES_PER_PIXEL = 4
_MIB = 2**20


class RequestMedia:
    """What the media of one request take, in all threads that decode them.

    `max_pixels`: those of all images and frames. `audio_turn` is held while a file of audio is
    decoded: its size is known only afterwards. `room`: for the requests that decode.
    """

    def __init__(self, max_pixels: int, room: asyncio.Semaphore | None = None) -> None:
        self.max_pixels = max_pixels
        self.audio_turn = asyncio.Lock()
        self._room = room
        self._room_turn = asyncio.Lock()
        self._has_room = self._has_ended = False
        self._lock = threading.Lock()
        self._pixels = self._audio_bytes = 0

    async def enter(self) -> None:
        """Wait for room to decode, unless the request has some. Raises ValueError after its end."""
        async with self._room_turn:
            if self._room is None or self._has_room:
                return
            await self._room.acquire()
            self._has_room = True
        if self._has_ended:  # it has failed, and left this task behind
            self.leave()
            raise ValueError("The request has ended.")

    def leave(self) -> None:
        """Make room for another request."""
        if self._room is not None and self._has_room:
            self._has_room = False
            self._room.release()

    def end(self) -> None:
        """Make room, as of the request's end."""
        self._has_ended = True
        self.leave()

    def add_pixels(self, pixels: int) -> None:
        """Raises ValueError beyond the request's pixels."""
        with self._lock:
            self._pixels += pixels
            total = self._pixels
        if total > self.max_pixels:
            raise ValueError(
                f"The images and video frames of the request have {total:,} pixels or more, but"
                f" at most {self.max_pixels:,} are allowed. Send fewer or smaller ones."
            )

    def add_audio(self, data: bytes, backend: str | None) -> tuple[Any, float]:
        """Return the samples of a file, and their rate. Raises ValueError beyond the request's
        bytes."""
        most = envs.VLLM_MAX_AUDIO_DECODE_BYTES
        try:
            samples, rate = load_audio(
                BytesIO(data),
                sr=None,
                max_duration_s=envs.VLLM_MAX_AUDIO_DECODE_DURATION_S,
                max_decode_bytes=max(1, most - self._audio_bytes),
                backend=backend,
            )
        except ValueError as error:
            if not self._audio_bytes:
                raise
            raise ValueError(
                f"The audio of the request has more than {most // _MIB} MiB of samples, or cannot"
                " be decoded. Send fewer or shorter files."
            ) from error
        self._audio_bytes += samples.nbytes
        return samples, rate


_OF_REQUEST: ContextVar[RequestMedia | None] = ContextVar("media of the request", default=None)
# The width and height of the video that a thread decodes, and its request.
_DECODING = threading.local()


class MediaBounds:
    """An ASGI application whose requests may have `max_pixels` pixels each. At most
    `decoding_at_once` of them decode media at the same time."""

    def __init__(
        self, app: ASGIApp, max_pixels: int, decoding_at_once: int = DECODING_AT_ONCE
    ) -> None:
        self._app = app
        # of vLLM's application, which has its engine
        self.state = getattr(app, "state", None)
        self._max_pixels = max_pixels
        self._room = asyncio.Semaphore(decoding_at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        media = RequestMedia(self._max_pixels, self._room)
        token = _OF_REQUEST.set(media)
        try:
            await self._app(scope, receive, send)
        finally:
            media.end()
            _OF_REQUEST.reset(token)


def items_per_prompt(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return vLLM's `limit_mm_per_prompt`, with a default for each modality that is not chosen."""
    return {**ITEMS_PER_PROMPT, **chosen}


def of_request() -> RequestMedia:
    """Return the bounds of the current request. Media outside of one are bounded one by one."""
    return _OF_REQUEST.get() or RequestMedia(MAX_MEDIA_PIXELS)


class BoundedImageIO(ImageMediaIO):  # type: ignore[misc]
    """vLLM's loader of images, for one request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._media = of_request()

    def get_max_bytes(self) -> int:
        return _BYTES_PER_PIXEL * self._media.max_pixels

    def load_bytes(self, data: bytes) -> MediaWithBytes[Image.Image]:
        try:
            with open_image(BytesIO(data)) as image:
                counted = image.width * image.height
            self._media.add_pixels(counted)
            loaded = super().load_bytes(data)
        except ValueError:
            raise
        # Pillow's decoders raise errors of any kind
        except Exception as error:
            raise ValueError(f"An image cannot be decoded: {error}. Send a valid one.") from error
        # an icon may hold a larger image than its header says
        self._media.add_pixels(max(0, loaded.media.width * loaded.media.height - counted))
        return loaded


class BoundedVideoIO(VideoMediaIO):  # type: ignore[misc]
    """vLLM's loader of videos, for one request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._media = of_request()
        loader: Any = self.video_loader
        self.video_loader: Any = _counting(loader.__class__)()

    def load_base64(self, media_type: str, data: str) -> Any:
        try:
            return super().load_base64(media_type, data)
        except TypeError as error:  # of a setting in the client's `media_io_kwargs`
            raise ValueError(
                f"A video cannot be decoded with these 'media_io_kwargs': {error}."
                " Correct or omit them."
            ) from error

    def load_bytes(self, data: bytes) -> Any:
        _DECODING.media, _DECODING.size = self._media, (0, 0)
        return super().load_bytes(data)


class BoundedAudioIO(AudioMediaIO):  # type: ignore[misc]
    """vLLM's loader of audio, for one request."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._media = of_request()

    def load_bytes(self, data: bytes) -> tuple[Any, float]:
        self._validate_encoded_size(len(data))
        return self._media.add_audio(data, self.audio_backend)


def install(max_pixels: int) -> None:
    """Let vLLM load all media of this process within the bounds. Repeated calls have no effect,
    except on the pixels of an image inside an icon."""
    # Pillow checks images inside of images by this bound, and fails beyond twice its value
    Image.MAX_IMAGE_PIXELS = max_pixels // 2
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    connector.ImageMediaIO = BoundedImageIO
    connector.VideoMediaIO = BoundedVideoIO
    connector.AudioMediaIO = BoundedAudioIO
    _wait_for_room()
    _one_audio_at_a_time()
    _remember_frame_sizes()


def _wait_for_room() -> None:
    """Let data in requests wait for room. What a pool's hosts send does not: they may be slow."""
    load = connector.MediaConnector.load_from_url_async
    if load.__module__ == __name__:
        return

    async def load_with_room(self: Any, url: str, *args: Any, **more: Any) -> Any:
        if url[:5].lower() == "data:":
            await of_request().enter()
        return await load(self, url, *args, **more)

    connector.MediaConnector.load_from_url_async = load_with_room


def _one_audio_at_a_time() -> None:
    fetch = connector.MediaConnector.fetch_audio_async
    if fetch.__module__ == __name__:
        return

    async def fetch_in_turn(self: Any, audio_url: str) -> Any:
        async with of_request().audio_turn:
            return await fetch(self, audio_url)

    connector.MediaConnector.fetch_audio_async = fetch_in_turn


def _remember_frame_sizes() -> None:
    """Remember the size of a video's frames, which each decoder checks before it decodes."""
    check = video_decoders.check_frame_pixel_limit
    if check.__module__ == __name__:
        return

    def remember(width: int, height: int) -> None:
        check(width, height)
        _DECODING.size = width, height

    package = video_decoders.__package__
    for name, module in list(sys.modules.items()):
        if name.startswith(package) and hasattr(module, "check_frame_pixel_limit"):
            vars(module)["check_frame_pixel_limit"] = remember


@cache
def _counting(loader: Any) -> Any:
    """Return a loader of videos that counts the pixels of the frames that it is about to decode."""

    class CountingLoader(loader):  # type: ignore[misc]
        @classmethod
        def compute_frames_index_to_sample(cls, *args: Any, **kwargs: Any) -> list[int]:
            frames: list[int] = super().compute_frames_index_to_sample(*args, **kwargs)
            width, height = _DECODING.size
            _DECODING.media.add_pixels(len(frames) * width * height)
            return frames

    return CountingLoader
