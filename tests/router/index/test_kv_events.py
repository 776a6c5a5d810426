"""The events that vLLM's own classes make, as Antefix reads them: a field it renames fails
here."""

import base64
import json
import subprocess
from typing import Any

import msgspec
import pytest

from router.index.cached_blocks import CachedBlocks
from router.index.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    UndecodableEvents,
    decode,
    media_and_salt,
)
from router.index.segment_keys import Media, Namespace, SegmentHasher

HASHER = SegmentHasher(b"secret")
TOKENS = list(range(100, 132))
# Importing vLLM takes ten seconds and more where cores are busy.
VLLM_SECONDS = 200

# What vLLM's block pool publishes for one request of each kind, as base64 of its messages.
VLLM = """
import base64, json, os, sys
from typing import get_args, get_type_hints
import msgspec
import torch
from vllm.distributed.kv_events import KVEventBatch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import Request

os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "0"
BLOCK = 4
TOKENS = list(range(100, 132))
kv_cache_utils.init_none_hash(sha256_cbor)

def messages(*events_of_steps):
    batches = [KVEventBatch(ts=1.5, events=e, data_parallel_rank=0) for e in events_of_steps]
    return [base64.b64encode(msgspec.msgpack.encode(b)).decode() for b in batches]

def stored(pool, tokens=TOKENS, first=0, blocks=None, **kind):
    request = Request(
        "id", tokens, SamplingParams(max_tokens=1), None,
        block_hasher=kv_cache_utils.get_request_block_hasher(BLOCK, sha256_cbor), **kind)
    if blocks is None:
        blocks = pool.get_new_blocks(len(TOKENS) // BLOCK)
    pool.cache_full_blocks(request, blocks, first, len(blocks), BLOCK, 0)
    return request, blocks

def pool():
    return BlockPool(num_gpu_blocks=9, enable_caching=True, hash_block_size=BLOCK,
                     enable_kv_cache_events=True)

def item(offset, length):
    return MultiModalFeatureSpec(data=None, modality="image", identifier=f"image of {length}",
                                 mm_position=PlaceholderRange(offset=offset, length=length))

cases = {}
for name, kind in {
    "plain": {},
    "lora": {"lora_request": LoRARequest("adapter", 1, "/adapter")},
    "salt": {"cache_salt": "tenant"},
    "media": {"mm_features": [item(3, 6), item(9, 2), item(14, 5)]},
    "all": {"lora_request": LoRARequest("adapter", 1, "/adapter"), "cache_salt": "adapter",
            "mm_features": [item(0, 17)]},
    "embeddings": {"tokens": None, "prompt_embeds": torch.zeros(32, 2)},
}.items():
    p = pool()
    stored(p, **kind)
    cases[name] = messages(p.take_events())

p = pool()
request, blocks = stored(p)
steps = [p.take_events()]
p.emit_cached_block_events(request, 2, BLOCK, 0)
steps.append(p.take_events())
p.free_blocks(reversed(blocks))
again = p.get_new_blocks(3)
steps.append(p.take_events())
p.free_blocks(again)
p.reset_prefix_cache()
steps.append(p.take_events())
cases["life"] = messages(*steps)

os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "1"
p = pool()
stored(p)
cases["numbers as hashes"] = messages(p.take_events())
kinds = get_args(get_args(get_type_hints(KVEventBatch)["events"])[0])
cases["kinds"] = [k.__name__ for k in kinds]
print(json.dumps(cases), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def vllm(warm_python: str) -> dict[str, list[str]]:
    done = subprocess.run(
        [warm_python, "-c", VLLM],
        capture_output=True,
        text=True,
        timeout=VLLM_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cases: dict[str, list[str]] = json.loads(done.stderr.splitlines()[-1])
    return cases


def payloads(vllm: dict[str, list[str]], case: str) -> list[bytes]:
    return [base64.b64decode(payload) for payload in vllm[case]]


@pytest.mark.real
def test_a_stored_event_has_all_fields_that_antefix_reads(vllm: dict[str, list[str]]) -> None:
    [payload] = payloads(vllm, "all")
    [event] = decode(payload)
    assert isinstance(event, BlockStored)
    assert event.token_ids == TOKENS
    assert (event.block_size, event.parent_block_hash) == (4, None)
    assert all(isinstance(hash_, bytes) and len(hash_) == 32 for hash_ in event.block_hashes)
    assert (event.medium, event.group_idx, event.lora_name) == ("GPU", 0, "adapter")
    assert event.extra_keys is not None
    assert event.extra_keys[0] == ("adapter", ["image of 17", 0], "adapter")
    assert event.extra_keys[1] == ("adapter", ["image of 17", -4])
    assert event.extra_keys[5] == ("adapter",)


@pytest.mark.real
def test_a_prefix_cache_is_followed_from_its_first_block_to_its_reset(
    vllm: dict[str, list[str]],
) -> None:
    stored, reused, evicted, cleared = (decode(p) for p in payloads(vllm, "life"))
    assert isinstance(stored[0], BlockStored) and isinstance(reused[0], BlockStored)
    assert reused[0].block_hashes == stored[0].block_hashes[:2]
    assert evicted == [
        BlockRemoved(block_hashes=[hash_], medium="GPU", group_idx=0)
        for hash_ in stored[0].block_hashes[:-4:-1]
    ]
    assert cleared == [AllBlocksCleared()]


@pytest.mark.real
@pytest.mark.parametrize("segment_tokens", [4, 8, 16, 32])
@pytest.mark.parametrize(
    ("case", "lora", "cache_salt", "media"),
    [
        ("plain", None, None, []),
        ("numbers as hashes", None, None, []),
        ("lora", "adapter", None, []),
        ("salt", None, "tenant", []),
        ("media", None, None, [(3, 6), (9, 2), (14, 5)]),
        ("all", "adapter", "adapter", [(0, 17)]),
    ],
)
def test_blocks_that_vllm_stores_have_the_keys_of_a_gateway(
    vllm: dict[str, list[str]],
    segment_tokens: int,
    case: str,
    lora: str | None,
    cache_salt: str | None,
    media: list[tuple[int, int]],
) -> None:
    held = CachedBlocks(HASHER, "main", None, segment_tokens)
    [payload] = payloads(vllm, case)
    held.apply(decode(payload))
    namespace = Namespace("main", None, lora, cache_salt)
    items = [Media(f"image of {length}", offset, length) for offset, length in media]
    assert held.keys() == HASHER.keys(namespace, TOKENS, segment_tokens, items)


@pytest.mark.real
def test_prompt_embeddings_have_no_keys(vllm: dict[str, list[str]]) -> None:
    held = CachedBlocks(HASHER, "main", None, 4)
    [payload] = payloads(vllm, "embeddings")
    held.apply(decode(payload))
    assert held.keys() == []


@pytest.mark.real
def test_the_kinds_of_events_are_those_that_vllm_sends(vllm: dict[str, list[str]]) -> None:
    kinds = [kind.__name__ for kind in (BlockStored, BlockRemoved, AllBlocksCleared)]
    assert sorted(vllm["kinds"]) == sorted(kinds)


def batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.0, events, None, "a field of a later version"])


CLEARED = {"type": "AllBlocksCleared"}
REMOVED = {"type": "BlockRemoved", "block_hashes": [1, b"2"]}


def test_fields_of_a_later_version_are_ignored() -> None:
    assert decode(batch({**REMOVED, "reason": "later"})) == [BlockRemoved([1, b"2"])]


def test_events_of_a_later_version_are_skipped() -> None:
    later = {"type": "BlockPinned", "block_hashes": [1]}
    assert decode(batch(CLEARED, later, REMOVED)) == [
        AllBlocksCleared(),
        BlockRemoved([1, b"2"]),
    ]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"events": []}),
        batch(CLEARED, {"type": "BlockRemoved"}),
        batch(CLEARED, {"type": "BlockRemoved", "block_hashes": ["a prompt"]}),
        batch({"type": "BlockStored", "block_hashes": [], "token_ids": ["a prompt"]}),
        batch({"no": "type"}),
        batch(CLEARED)[:-1],
    ],
)
def test_the_error_of_an_invalid_batch_does_not_quote_it(payload: bytes) -> None:
    with pytest.raises(UndecodableEvents) as raised:
        decode(payload)
    assert "a prompt" not in str(raised.value)


@pytest.mark.parametrize(
    ("extra_keys", "lora", "first", "media", "salt"),
    [
        (None, "adapter", True, (), None),
        ((), None, True, (), None),
        (("adapter",), "adapter", True, (), None),
        (("adapter", "adapter"), "adapter", True, (), "adapter"),
        ((["image", -3], ["video", 2]), None, False, (("image", -3), ("video", 2)), None),
        (("adapter", ["image", 0], "tenant"), "adapter", True, (("image", 0),), "tenant"),
    ],
)
def test_extra_keys_name_media_and_the_cache_salt(
    extra_keys: tuple[Any, ...] | None,
    lora: str | None,
    first: bool,
    media: tuple[tuple[str, int], ...],
    salt: str | None,
) -> None:
    assert media_and_salt(extra_keys, lora, first) == (media, salt)


@pytest.mark.parametrize(
    ("extra_keys", "first"),
    [
        ((b"digest",), True),
        (("tenant",), False),
        (("tenant", "another"), True),
        ((["image"],), True),
        ((["image", "0"],), True),
        ((["image", 2**40],), True),
        ((7,), True),
    ],
)
def test_blocks_with_other_extra_keys_are_not_identified_by_their_tokens(
    extra_keys: tuple[Any, ...], first: bool
) -> None:
    assert media_and_salt(extra_keys, None, first) is None
