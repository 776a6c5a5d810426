"""vLLM's KV cache events, as its publisher sends them: msgpack, one batch per message.

Only fields in use are declared and others are ignored, so that new ones break nothing. Events of a
kind that vLLM 0.32 does not have are skipped. Unreadable data raises UndecodableEvents, which never
quotes the payload, because it contains prompts. Source: vllm/distributed/kv_events.py and
vllm/v1/core/block_pool.py of vLLM 0.32.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router.index.segment_keys import MAX_TOKEN, SegmentMedia

# bytes, or an int if VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES is set
BlockHash = bytes | int


class UndecodableEvents(ValueError):
    """A payload that is not a batch of KV events."""


class BlockStored(msgspec.Struct, tag=True, frozen=True, gc=False):
    """Consecutive blocks that were cached: one event for each physical copy of them.

    `token_ids` has `block_size` tokens for each hash, `parent_block_hash` is the block before the
    first, None at a prompt's start. `extra_keys` has an entry for each block. An entry contains the
    LoRA name if there is one, and (multimodal identifier, offset from the block's start) pairs. It
    may also contain the cache salt as str (a prompt's first block only), and digests of prompt
    embeddings as bytes.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, frozen=True, gc=False):
    """Physical blocks evicted, each by its hash; other copies of it may remain."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, frozen=True, gc=False):
    """The whole prefix cache was reset."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[KvEvent]


class _RawBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]


class _Kind(msgspec.Struct):
    type: str


_KINDS = {kind.__name__ for kind in (BlockStored, BlockRemoved, AllBlocksCleared)}
_decode_batch = msgspec.msgpack.Decoder(_Batch).decode
_decode_raw_batch = msgspec.msgpack.Decoder(_RawBatch).decode
_decode_kind = msgspec.msgpack.Decoder(_Kind).decode
_decode_event: msgspec.msgpack.Decoder[KvEvent] = msgspec.msgpack.Decoder(KvEvent)


def decode(payload: bytes) -> list[KvEvent]:
    """Return the events of one batch, in order. Raises UndecodableEvents."""
    try:
        return _decode_batch(payload).events
    except msgspec.MsgspecError:
        pass
    try:
        raw = _decode_raw_batch(payload).events
        return [_decode_event.decode(event) for event in raw if _decode_kind(event).type in _KINDS]
    except msgspec.MsgspecError as error:
        # A ValidationError names a type and a path, never a value of a known event.
        raise UndecodableEvents(f"not a batch of vLLM's KV events: {error}") from None


def media_and_salt(
    extra_keys: tuple[Any, ...] | None, lora_name: str | None, first: bool
) -> tuple[SegmentMedia, str | None] | None:
    """Return the media and the cache salt in a block's extra keys; None if there are others.

    Media offsets are from the block's start. `first`: the block starts the prompt.
    """
    if extra_keys is None:
        return (), None
    media = []
    salt = None
    for key in extra_keys[1:] if lora_name and extra_keys[:1] == (lora_name,) else extra_keys:
        match key:
            case [str() as identifier, int() as offset] if abs(offset) <= MAX_TOKEN:
                media.append((identifier, offset))
            case str() if first and salt is None:
                salt = key
            case _:
                return None
    return tuple(media), salt
