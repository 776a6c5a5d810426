"""The files of LoRA adapters: where they may come from, what they must be, and a replica's copies.

    <folder>/<unique>/adapter_config.json, adapter_model.safetensors

An engine reads an adapter again whenever it has evicted it. So it reads a copy: what is written to
the source afterwards cannot change the weights of running requests. Each adapter has its own copy,
so that of another can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_FILES = (CONFIG, WEIGHTS)
_DIGEST_CHARS = 16
# Characters that a URL parser decodes, turns into a slash, or ends the path at.
_OF_URLS = frozenset("%\\?#")
_FILE_URL = "file://"
_PIECE = 1 << 20
# Clients of object stores. The command that loads an adapter waits for them.
_CLIENT: Any = {"timeout": "10m", "connect_timeout": "5s", "allow_http": True}
_RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}


class UnusableAdapter(Exception):
    """An adapter that this engine cannot serve; the message names the remedy."""


@dataclass(frozen=True)
class AdapterFiles:
    """A replica's copy in `folder`. `size` in bytes. `source`: of these very files, where that can
    be said: a Hugging Face id with its commit."""

    source: str
    digest: str
    folder: Path
    rank: int
    size: int


def is_allowed(source: str, allowed: Sequence[str]) -> bool:
    """Return whether a source lies within one of the allowed ones: folders, beginnings of Hugging
    Face ids and of URLs.

    A store's client parses a URL as browsers do, so a URL is refused if that could change its path.
    """
    if _is_folder(source):
        return _is_within(source, [one for one in allowed if _is_folder(one)])
    if not _is_url(source):
        source = source.partition("@")[0]
    others = [one for one in allowed if not _is_folder(one)]
    if not _stays_as_written(source) or not any(_begins_with(source, one) for one in others):
        return False
    if not source.startswith(_FILE_URL):
        return True
    files = [one.removeprefix(_FILE_URL) for one in others if one.startswith(_FILE_URL)]
    return _is_within(source.removeprefix(_FILE_URL), files)


def _is_within(path: str, folders: Sequence[str]) -> bool:
    """Return whether a path lies within one of the folders, once links are followed."""
    real = Path(path).resolve()
    found = [Path(folder).resolve() for folder in folders]
    return any(real == folder or folder in real.parents for folder in found)


def _stays_as_written(source: str) -> bool:
    """Return whether every parser reads the same path in a URL or an id."""
    odd = (c in _OF_URLS or (c != " " and unicodedata.category(c)[0] in "CZ") for c in source)
    if source != source.strip() or any(odd):
        return False
    segments = unicodedata.normalize("NFKC", source).split("/")
    return not any(segment and not segment.strip(" .") for segment in segments)


def copied(source: str, allowed: Sequence[str], into: Path) -> AdapterFiles:
    """Copy an adapter's files. Blocks. Raises UnusableAdapter."""
    if not is_allowed(source, allowed):
        raise UnusableAdapter(
            f"the adapter's source {source!r} is not allowed. The allowed sources, with everything "
            f"below them, are: {', '.join(allowed)}. Move the adapter there, or add its source to "
            "the pool's `adapters.sources`. A URL or an id must not contain '%', '#', a question "
            "mark, a backslash, control characters or a segment of dots."
        )
    into.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(dir=into))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        found = _copied(source, folder)
        stack.pop_all()
    return found


def _copied(source: str, folder: Path) -> AdapterFiles:
    try:
        local = source
        if not _is_folder(source) and not _is_url(source):
            downloaded = _downloaded(source)
            local = str(downloaded)
            # https://huggingface.co/docs/huggingface_hub/guides/manage-cache: snapshots/<commit>
            source = f"{source.partition('@')[0]}@{downloaded.name}"
        digest, size = _digest_of_copy(local, folder)
        config = _config(folder / CONFIG, source)
        return AdapterFiles(source, digest, folder, int(config["r"]), size)
    except OSError as error:
        raise UnusableAdapter(
            f"the adapter {source!r} cannot be read: {_line(error)}. It needs the files "
            f"{CONFIG} and {WEIGHTS}, which PEFT writes."
        ) from error
    except UnusableAdapter:
        raise
    except Exception as error:  # of a store
        raise UnusableAdapter(
            f"the adapter {source!r} cannot be read: {_line(error)}. Correct the source or the "
            "store's credentials in `env` of the pool, or copy the adapter to a folder."
        ) from error


def _line(error: Exception) -> str:
    """Return the first line of a message, up to 300 characters: stores append details."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return text.partition("\n")[0][:300].rstrip(".")


def _digest_of_copy(source: str, into: Path) -> tuple[str, int]:
    hash_, size = hashlib.sha256(), 0
    for name, pieces in _pieces_of(source):
        with (into / name).open("wb") as copy:
            for piece in pieces:
                copy.write(piece)
                hash_.update(piece)
                size += len(piece)
        hash_.update(size.to_bytes(8, "big"))
    return hash_.hexdigest()[:_DIGEST_CHARS], size


def _pieces_of(source: str) -> Iterator[tuple[str, Iterable[bytes]]]:
    """Yield each file's name and its bytes. Raises OSError, and errors of the store."""
    if _is_url(source):
        import obstore

        # its credentials come from the environment, such as AWS_ACCESS_KEY_ID
        store: Any = obstore.store.from_url(source, client_options=_CLIENT, retry_config=_RETRIES)
        parsed = getattr(store, "url", None) or getattr(store, "prefix", None)
        if parsed is not None and not _is_of(source, str(parsed)):
            raise UnusableAdapter(
                f"the object store's client reads the source {source!r} as {str(parsed)!r}."
                " Use that spelling."
            )
        for name in _FILES:
            yield name, map(bytes, obstore.get(store, name).stream(min_chunk_size=_PIECE))
        return
    for name in _FILES:
        with (Path(source) / name).open("rb") as file:
            yield name, iter(partial(file.read, _PIECE), b"")


def _downloaded(source: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    model_id, _, revision = source.partition("@")
    try:
        found = snapshot_download(model_id, revision=revision or None, allow_patterns=list(_FILES))
        return Path(found)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise UnusableAdapter(
            f"the adapter {source!r} cannot be downloaded: {str(error).splitlines()[0]}. Correct "
            "its id or its revision after @, or copy it to a folder and pass the absolute path."
        ) from error


def _config(file: Path, source: str) -> Mapping[str, Any]:
    try:
        config = json.loads(file.read_bytes())
        if config["peft_type"] == "LORA" and type(config["r"]) is int and config["r"] > 0:
            found: Mapping[str, Any] = config
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise UnusableAdapter(
        f"{CONFIG} of {source!r} does not describe a LoRA adapter: it needs peft_type LORA and a "
        "rank r above 0. Write the adapter with PEFT's save_pretrained."
    )


def _is_of(source: str, parsed: str) -> bool:
    """Return whether a store's own URL, or its path in a bucket, is that of the source."""
    return unquote(source).rstrip("/").endswith(unquote(parsed).rstrip("/"))


def _is_url(source: str) -> bool:
    return "://" in source


def _is_folder(source: str) -> bool:
    return source.startswith("/")


def _begins_with(source: str, allowed: str) -> bool:
    return source == allowed or source.startswith(allowed.rstrip("/") + "/")
