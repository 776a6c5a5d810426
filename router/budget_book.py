"""What one gateway granted, and what it knew of Redis, for the process that takes its place too.

A line is written before a request is let in: a gateway that is killed leaves a book that says of
all it granted, and the next process at its place goes on with it as if it were the same. It speaks
for its predecessor when Redis has forgotten, and has its share while Redis is away.

    <folder>/<n>.lock   its flock is a process's place: the kernel frees it when the process ends
    <folder>/<n>.old    what was written before, two windows of it or more
    <folder>/<n>.new    what is written now: lines of JSON. Half a line, of a process that was
                        killed as it wrote, is of what was not yet granted

In memory (/dev/shm) where there is such a thing: what is lost with the machine is as if there had
been no book. One that cannot be written is taken away, for half a book would be believed.
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

# Buckets that are kept. What left the window matters to a gateway that Redis went away from.
HISTORY = 2 * WINDOW + 10
PLACES = 1000
# A gateway writes every second: who has not for so long is gone, with its fleet.
LEFT_S = 86400.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MEMORY = Path("/dev/shm")  # the folder in it is private


def books_of(fleet: str, redis_url: str) -> Path | None:
    """The folder of a fleet's books on this machine. None where nobody could trust them."""
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
    """Requests and tokens of one local bucket: what Redis counts, and what it does not know of."""

    seen: list[int] = field(default_factory=lambda: [0, 0])
    unseen: list[int] = field(default_factory=lambda: [0, 0])


@dataclass
class Scope:
    """`leases`: its requests under way; `kept`: how many there were as Redis went away."""

    buckets: dict[int, Spent] = field(default_factory=dict)
    leases: set[str] = field(default_factory=set)
    kept: int = 0
    used: int = 0

    def sums(self, since: int) -> tuple[list[int], list[int]]:
        """Seen and unseen, of that local bucket and all after it."""
        seen, unseen = [0, 0], [0, 0]
        for at, spent in self.buckets.items():
            if at >= since:
                for place in (0, 1):
                    seen[place] += spent.seen[place]
                    unseen[place] += spent.unseen[place]
        return seen, unseen

    def frees_at(self, since: int, place: int, count: int, window: int) -> int:
        """The bucket at which so many requests (place 0) or tokens will have left the window."""
        for at, spent in self.buckets.items():
            if at >= since:
                count -= spent.seen[place] + spent.unseen[place]
                if count <= 0:
                    return at + window + 1
        return since + 2 * window


@dataclass
class Beats:
    """When Redis last heard of the gateway: no later than `heard_by`, no sooner than `heard_from`,
    in the loop's time; its share of each limit, and how many gateways there were."""

    heard_by: float = 0.0
    heard_from: float | None = None
    share: float = 0.0
    counted: int = 0


class Book:
    """One gateway's. Without a folder it ends with its process. `now`: the loop's time."""

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
                # nobody else has the name, whose book lies beside it
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
        """Or give back, where they are negative."""
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
        """As BEAT wants it: scope, seconds ago at least, seen and unseen requests and tokens."""
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
        """Scopes that nobody has used for long; they are forgotten here."""
        long_ago = bucket - HISTORY
        idle = [n for n, of in self.scopes.items() if of.used < long_ago and not of.leases]
        for name in idle:
            del self.scopes[name]
        return idle

    def close(self, whole: bool) -> None:
        """`whole`: nobody will need it, as Redis knows all of it."""
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
        """Nothing is given back that is not there. Returns whether anything changed."""
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
        """What a predecessor has left, if it is of this boot."""
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
        """A new file: at first with all that is known, else beside what was written until now."""
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
    """Take away the books of fleets that are gone."""
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
    """A place that one process has at a time, and the next when it has ended."""
    for place in range(PLACES):
        path = folder / f"{place}.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == path.stat().st_ino:  # else it has just been taken away
                return lock, path
        except OSError:
            pass
        os.close(lock)
    return None
