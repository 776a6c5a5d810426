"""Which segments the folder of a disk tier has, from notes of the engines that wrote its files.

vLLM reports a file once, to the engine that wrote it. So an engine that starts does not know the
files of earlier ones, and not those of others that share its folder. Each replica notes what its
engine writes in a log, which is a file in the same folder. A line describes a block:

    the name of its file, the name of the file of the block before it, the key of the last whole
    segment, and the number of tokens after that segment

A segment can be read if the files of all its blocks and of those before it exist. Names and keys
are derived from a secret of the fleet, so that a reader of the folder cannot test whether it
contains a prompt. A log is locked while its replica lives. Those of dead replicas are
merged into a new one. What a replica has not flushed when it is killed is missing, which costs only
the knowledge of these files. Its functions block, and are to be called in a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections import defaultdict
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".log"
BLOCK_SUFFIX = ".bin"
_FIRST = "-"
_LINE = re.compile(f"[0-9a-f]{{64}} ({_FIRST}|[0-9a-f]{{64}}) ([0-9a-f]{{2}})+ [0-9]+")
# A log with this many lines, and more than twice those of files, is written again.
MANY_LINES = 10_000


def names_key(secret: str) -> str:
    """Return the key of the names of files. Raises ValueError without a secret to derive it
    from."""
    if not secret:
        raise ValueError("the disk tier needs the fleet's engine secret, which is empty")
    return blake2b(secret.encode(), digest_size=32, person=b"antefix files").hexdigest()


def file_name(block_hash: bytes, key: str) -> str:
    """Return the name of a block's file, without its suffix."""
    return blake2b(block_hash, digest_size=32, key=key.encode()).hexdigest()


class DiskContent(NamedTuple):
    """`segments`: the keys of those that can be read, each after the one it is chained to; `gone`:
    the hashes of blocks that this engine wrote, and that were removed."""

    segments: list[bytes]
    gone: list[bytes]


class DiskRecord:
    """The notes of one replica, and what it learns from those of all."""

    def __init__(self, folder: Path, key: str) -> None:
        """`folder`: that of engines whose blocks are the same; `key`: see `names_key`. Raises
        OSError if the folder cannot be written."""
        self._folder = folder
        self._key = key
        self._noted: list[str] = []
        self._own: dict[str, bytes] = {}
        self._lines = 0
        self._log: int | None = None
        self._path = folder
        self._begin_log()

    def note(self, block_hash: bytes, before: bytes | None, segment: bytes, filled: int) -> None:
        """Note that a block was written; `before`: the block before it, None for the first one.

        Does not block. The line is written by the next `flush`.
        """
        parent = _FIRST if before is None else file_name(before, self._key)
        name = file_name(block_hash, self._key)
        self._own[name] = block_hash
        self._noted.append(f"{name} {parent} {segment.hex()} {filled}\n")

    def flush(self) -> None:
        """Write what was noted. Raises OSError, after which it can be called again."""
        if self._log is None or not self._path.exists():  # the folder was emptied
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._begin_log()
        assert self._log is not None
        noted, self._noted = self._noted, []
        try:
            os.write(self._log, "".join(noted).encode())
            os.utime(self._log)  # the sweeper removes what was not used for long
        except OSError:
            self._noted = noted + self._noted
            raise
        self._lines += len(noted)

    def read(self) -> DiskContent:
        """Return what the folder has, and what was removed since the last call."""
        own = list(self._own)  # before the files, so that they are older
        names = {file.stem for file in self._files()}
        gone = [self._own.pop(name) for name in own if name not in names]
        after: dict[str, dict[str, tuple[str, int]]] = defaultdict(dict)
        for line in self._all_lines():
            name, parent, key, filled = line.split(" ")
            if name in names:
                after[parent][name] = (key, int(filled))
        if self._lines > MANY_LINES and self._lines > 2 * len(names):
            self._begin_log()
        found: dict[bytes, None] = {}
        pending = [_FIRST]
        while pending:
            for name, (segment, rest) in after.pop(pending.pop(), {}).items():
                pending.append(name)
                if not rest:
                    found[bytes.fromhex(segment)] = None
        return DiskContent(list(found), gone)

    def close(self) -> None:
        """Flush, and leave the log to others."""
        with contextlib.suppress(OSError):  # later engines do not know these files
            self.flush()
        self._unlock()

    def _files(self) -> Iterator[Path]:
        for folder, _, files in os.walk(self._folder):
            yield from (Path(folder, file) for file in files if file.endswith(BLOCK_SUFFIX))

    def _all_lines(self) -> Iterator[str]:
        for log in self._folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):  # merged by another replica meanwhile
                yield from _whole_lines(log.read_text(errors="replace"))

    def _begin_log(self) -> None:
        """Begin a new log with the lines of the former one and of dead replicas whose files
        exist."""
        self._unlock()
        path = self._folder / f"{secrets.token_hex(8)}{SUFFIX}"
        log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(log, fcntl.LOCK_EX)
        names = {file.stem for file in self._files()}
        kept: dict[str, None] = {}
        dead = []
        for other in self._folder.glob(f"*{SUFFIX}"):
            if other == path:
                continue
            with contextlib.suppress(OSError), other.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while it is in use
                lines = _whole_lines(file.read().decode(errors="replace"))
                kept |= {line: None for line in lines if line.split(" ", 1)[0] in names}
                dead.append(other)
        os.write(log, "".join(f"{line}\n" for line in kept).encode())
        for other in dead:
            other.unlink(missing_ok=True)
        self._log, self._path, self._lines = log, path, len(kept)

    def _unlock(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None


def _whole_lines(text: str) -> Iterator[str]:
    """Yield valid lines. A crash may have cut the last one, or damaged others."""
    return filter(_LINE.fullmatch, text.split("\n")[:-1])
