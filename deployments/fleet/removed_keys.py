"""Keys that fleet files had: each with what replaces it. The chart rejects them too."""

from collections.abc import Iterator, Mapping
from typing import Any

from common.yaml_file import Keys

# Key -> the remedy. `*` stands for any name.
REMOVED_KEYS: Mapping[str, str] = {
    "gateway.resume_within_s": (
        "Delete it. A lost gateway ends its streams, and clients send these requests again. "
        "`pools.NAME.resume` still selects how the answers of a lost engine are resumed. OpenAI's "
        "background mode will let clients fetch the rest of an answer"
    ),
    "pools.*.overflow_to": "Write `overflow: {to: NAME}` in the same pool",
    "pools.*.prestart": "Set `warm_replicas` to have loaded engines that take over at once",
}


def removed_in(data: Mapping[Any, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield the removed keys in a fleet file's data, each with its remedy."""
    for path, remedy in REMOVED_KEYS.items():
        for keys in _places(data, path.split(".")):
            yield keys, remedy


def _places(data: Any, path: list[str]) -> Iterator[Keys]:
    """Yield the keys in `data` that `path` stands for."""
    name, *below = path
    for key in data if isinstance(data, Mapping) else ():
        if name not in ("*", key):
            continue
        if below:
            yield from ((key, *rest) for rest in _places(data[key], below))
        else:
            yield (key,)
