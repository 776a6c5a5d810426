"""The book of one gateway's grants and of its knowledge of Redis, also for its successor.

A line is written before a request is admitted. So a killed gateway leaves a book of all its grants.
The next process in its place continues with it as if it were the same. It reports its predecessor's
grants when Redis has lost them, and has its share while Redis is unavailable.

    <folder>/<n>.lock   its flock reserves a process's place until the process ends
    <folder>/<n>.old    the previous file, with at least two windows
    <folder>/<n>.new    the current file: lines of JSON. An incomplete line, of a process that was
                        killed while writing, has not been granted yet

Books are in memory (/dev/shm) if possible: losing them with the machine equals having none. A book
that cannot be written is removed, because an incomplete one would be trusted.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any

from common.private_folder import made_private, user_folder
from router.budget_scripts import WINDOW

logger = logging.getLogger("ray.serve")

# Number of buckets that are kept. A gateway without Redis also needs those that have left the
# window.
HISTORY = 2 * WINDOW + 10
PLACES = 1000
# A gateway writes every second: after this long without a write, it and its fleet are dead.
LEFT_S = 86400.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MEMORY = Path("/dev/shm")  # the folder in it is private


def books_of(fleet: str, redis_url: str) -> Path | None:
    """Return the folder of a fleet's books on this machine; None if they could not be trusted."""
    redis = redis_url.rpartition("@")[2]
    folder = _MEMORY / user_folder().name if os.access(_MEMORY, os.W_OK) else user_folder()
    name = sha1(f"{fleet} {redis}".encode()).hexdigest()[:16]
    try:
        if not _BOOT.exists():
            return None
        found = made_private(folder) / "budgets" / name
        _sweep(found.parent)
        found.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("budgets do not survive this process: %s", error)
        return None
    return found


@dataclass
class Spent:
    """Requests and tokens of one local bucket: those that Redis counts, and those that it has not
    seen."""

    seen: list[int] = field(default_factory=lambda: [0, 0])
    unseen: list[int] = field(default_factory=lambda: [0, 0])


@dataclass
class Scope:
    """`leases`: its running requests; `kept`: their number when Redis became unavailable."""

    buckets: dict[int, Spent] = field(default_factory=dict)
    leases: set[str] = field(default_factory=set)
    kept: int = 0
    used: int = 0

    def sums(self, since: int) -> tuple[list[int], list[int]]:
        """Return seen and unseen sums, of that local bucket and all after it."""
        seen, unseen = [0, 0], [0, 0]
        for at, spent in self.buckets.items():
            if at >= since:
                for place in (0, 1):
                    seen[place] += spent.seen[place]
                    unseen[place] += spent.unseen[place]
        return seen, unseen

    def frees_at(self, since: int, place: int, count: int, window: int) -> int:
        """Return the bucket at which `count` requests (place 0) or tokens will have left the
        window."""
        for at, spent in self.buckets.items():
            if at >= since:
                count -= spent.seen[place] + spent.unseen[place]
                if count <= 0:
                    return at + window + 1
        return since + 2 * window


@dataclass
class Beats:
    """The last contact with Redis: no later than `heard_by`, no sooner than `heard_from`, in the
    loop's time; the gateway's share of each limit, and the number of gateways."""

    heard_by: float = 0.0
    heard_from: float | None = None
    share: float = 0.0
    counted: int = 0


class Book:
    """The book of one gateway. Without a folder it ends with its process. `now`: the loop's
    time."""

    def __init__(self, folder: Path | None, now: float, bucket_s: float, name: str = "") -> None:
        self.scopes: dict[str, Scope] = {}
        self.beats = Beats()
        self.began = now
        self.id = secrets.token_hex(8)
        self.name = name or secrets.token_hex(8)
        self._bucket_s = bucket_s
        self._files: tuple[Path, ...] = ()
        self._lock: int | None = None
        self._file: int | None = None
        self._turned = now
        try:
            if folder is not None and (lock := _free_place(folder)) is not None:
                self._lock, path = lock
                # the lock file's name is unique, and so is the book next to it
                os.pwrite(self._lock, (os.pread(self._lock, 16, 0) or self.name.encode()), 0)
                self.name = os.pread(self._lock, 16, 0).decode()
                self._files = path, path.with_suffix(".old"), path.with_suffix(".new")
                self._read(now)
                self._turn(now, first=True)
        except OSError as error:
            self._spoil(error)

    def scope(self, name: str) -> Scope:
        return self.scopes.setdefault(name, Scope())

    def grant(self, scope: str, bucket: int, requests: int, tokens: int, by_share: bool) -> None:
        """Record a grant, or a release if the numbers are negative."""
        if self._change(scope, bucket, requests, tokens, by_share):
            self._write("u" if by_share else "s", scope, bucket, requests, tokens)

    def all_seen(self) -> None:
        self._see_all()
        self._write("a")

    def beat(self, **changed: Any) -> None:
        for name, value in changed.items():
            setattr(self.beats, name, value)
        beats = self.beats
        self._write("b", beats.heard_by, beats.heard_from, beats.share, beats.counted)

    def told(self, now: float) -> list[list[Any]]:
        """Return the arguments of BEAT: scope, minimum age in seconds, seen and unseen requests and
        tokens."""
        length = self._bucket_s
        return [
            [name, max(0.0, now - (at + 1) * length), *spent.seen, *spent.unseen]
            for name, scope in self.scopes.items()
            for at, spent in scope.buckets.items()
            if (at + WINDOW) * length > now
        ]

    def forget_old(self, now: float) -> None:
        oldest = int(now / self._bucket_s) - HISTORY
        for scope in self.scopes.values():
            while scope.buckets and (at := next(iter(scope.buckets))) < oldest:
                del scope.buckets[at]
        if self._file is not None and now - self._turned > HISTORY * self._bucket_s:
            try:
                self._turn(now)
            except OSError as error:
                self._spoil(error)

    def idle(self, bucket: int) -> list[str]:
        """Return and forget scopes without recent use."""
        long_ago = bucket - HISTORY
        idle = [n for n, of in self.scopes.items() if of.used < long_ago and not of.leases]
        for name in idle:
            del self.scopes[name]
        return idle

    def close(self, whole: bool) -> None:
        """Close the book. `whole`: it is no longer needed, because Redis has all of it."""
        if whole and self._file is not None:
            self._take_away()
            with suppress(OSError):
                self._files[0].unlink()
                self._files[0].parent.rmdir()
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._lock = None

    def _change(self, scope: str, bucket: int, requests: int, tokens: int, by_share: bool) -> bool:
        """Change the sums, which never go below zero. Return whether they changed."""
        of = self.scope(scope)
        if requests < 0 or tokens < 0:
            if bucket not in of.buckets:
                return False
        else:
            of.used = max(of.used, bucket)
        spent = of.buckets.setdefault(bucket, Spent())
        counted = spent.unseen if by_share else spent.seen
        for place, change in enumerate((requests, tokens)):
            counted[place] = max(0, counted[place] + change)
        return requests != 0 or tokens != 0

    def _see_all(self) -> None:
        for scope in self.scopes.values():
            for spent in scope.buckets.values():
                spent.seen = [a + b for a, b in zip(spent.seen, spent.unseen, strict=True)]
                spent.unseen = [0, 0]

    def _read(self, now: float) -> None:
        """Read the book of a predecessor, if it is of this boot."""
        boot = _BOOT.read_text().strip()
        for line in _lines(self._files[1:]):
            match line:
                case ["h", str(of_boot), str(book), float(began)]:
                    if of_boot != boot or began > now:
                        break
                    self.id, self.began = book, began
                case ["s" | "u" as kind, str(scope), int(bucket), int(requests), int(tokens)]:
                    self._change(scope, bucket, requests, tokens, kind == "u")
                case ["a"]:
                    self._see_all()
                case ["b", heard_by, heard_from, share, counted]:
                    self.beats = Beats(heard_by, heard_from, share, counted)
        else:
            return
        self.scopes, self.beats = {}, Beats()

    def _turn(self, now: float, first: bool = False) -> None:
        """Start a new file: the first with all known data, later ones next to the previous file."""
        _, old, new = self._files
        written = old.with_suffix(".tmp") if first else new
        if self._file is not None:
            os.close(self._file)
            self._file = None
            new.replace(old)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC * first)
        self._file = os.open(written, flags, 0o600)
        self._turned = now
        self._write("h", _BOOT.read_text().strip(), self.id, self.began)
        self.beat()
        if first:
            for name, scope in self.scopes.items():
                for at, spent in scope.buckets.items():
                    self._write("s", name, at, *spent.seen)
                    self._write("u", name, at, *spent.unseen)
            if self._file is not None:
                written.replace(new)
                old.unlink(missing_ok=True)

    def _write(self, *line: Any) -> None:
        if self._file is None:
            return
        text = json.dumps(line).encode() + b"\n"
        try:
            if os.write(self._file, text) != len(text):
                raise OSError("the book is full")
        except OSError as error:
            self._spoil(error)

    def _spoil(self, error: OSError) -> None:
        logger.warning("budgets do not survive this process: %s", error)
        if self._file is not None:
            os.close(self._file)
        self._file = None
        self._take_away()

    def _take_away(self) -> None:
        for file in self._files[1:]:
            with suppress(OSError):
                file.unlink()


def _sweep(books: Path) -> None:
    """Remove the books of fleets that are gone."""
    for of_fleet in books.glob("*"):
        with suppress(OSError):
            written = max(file.stat().st_mtime for file in (of_fleet, *of_fleet.iterdir()))
            if time.time() - written > LEFT_S:
                shutil.rmtree(of_fleet)


def _lines(files: tuple[Path, ...]) -> Iterator[Any]:
    for file in files:
        with suppress(FileNotFoundError), file.open("rb") as lines:
            for line in lines:
                with suppress(ValueError):
                    yield json.loads(line)


def _free_place(folder: Path) -> tuple[int, Path] | None:
    """Return a place that one process has at a time, and the next process after its end."""
    for place in range(PLACES):
        path = folder / f"{place}.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == path.stat().st_ino:  # otherwise it has just been removed
                return lock, path
        except OSError:
            pass
        os.close(lock)
    return None
