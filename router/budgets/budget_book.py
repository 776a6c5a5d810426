"""One gateway's grants and its knowledge of Redis; and the place that its successor takes.

A gateway keeps its grants in memory. A place outlives it: a small file with the gateway's name and
its last contact with Redis. The next process at the place has the same name, so Redis withholds no
share for its predecessor. While Redis is unavailable, it has the predecessor's share, but does not
know the predecessor's grants.

    <folder>/<n>.lock   the flock on it reserves a process's place until the process ends; it
                        contains the boot, the gateway's name and its `Beats` as JSON

Places are in memory (/dev/shm) if possible, because times of a previous boot mean nothing.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any

from common.private_folder import made_private, user_folder
from router.budgets.budget_scripts import WINDOW

logger = logging.getLogger("ray.serve")

# Number of buckets that are kept. A gateway without Redis also needs those that have left the
# window.
HISTORY = 2 * WINDOW + 10
PLACES = 1000
# A gateway writes every second: after this long without a write, it and its fleet are dead.
LEFT_S = 86400.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MEMORY = Path("/dev/shm")  # the folder in it is private
# A written place has always the same length, so that a shorter one leaves nothing of a longer one.
_PLACE_BYTES = 512


def places_of(fleet: str, redis_url: str) -> Path | None:
    """Return the folder of a fleet's places on this machine; None if they could not be trusted."""
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
        logger.warning("failed to store budgets; the next gateway cannot continue them: %s", error)
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


class GatewayPlace:
    """One process's place among a fleet's gateways. Without a folder it ends with its process."""

    def __init__(self, folder: Path | None, now: float, name: str = "") -> None:
        self.name = name or secrets.token_hex(8)
        self.beats = Beats()
        self._lock: int | None = None
        self._path: Path | None = None
        try:
            if folder is not None and (free := _free_place(folder)) is not None:
                self._lock, self._path = free
                self._read(now)
                self._write()
        except OSError as error:
            self._give_up(error)

    def beat(self, **changed: Any) -> None:
        """Change the knowledge of Redis, for the successor too."""
        for name, value in changed.items():
            setattr(self.beats, name, value)
        try:
            self._write()
        except OSError as error:
            self._give_up(error)

    def close(self, for_good: bool) -> None:
        """Leave the place to the next process, or for good."""
        if for_good and self._path is not None:
            with suppress(OSError):
                self._path.unlink()
                self._path.parent.rmdir()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def _read(self, now: float) -> None:
        """Continue a predecessor of this boot. A file that it had not written to its end counts as
        none."""
        assert self._lock is not None
        try:
            boot, name, beats = json.loads(os.pread(self._lock, _PLACE_BYTES, 0))
            found = Beats(**beats)
        except (ValueError, TypeError):
            return
        if boot == _BOOT.read_text().strip() and (found.heard_from or 0.0) <= now:
            self.name, self.beats = name, found

    def _write(self) -> None:
        if self._lock is not None:
            line = [_BOOT.read_text().strip(), self.name, asdict(self.beats)]
            os.pwrite(self._lock, json.dumps(line).encode().ljust(_PLACE_BYTES), 0)

    def _give_up(self, error: OSError) -> None:
        logger.warning("failed to store budgets; the next gateway cannot continue them: %s", error)
        self.close(for_good=True)


class Book:
    """The grants of one gateway by scope. `now`: the loop's time."""

    def __init__(self, bucket_s: float) -> None:
        self.scopes: dict[str, Scope] = {}
        self._bucket_s = bucket_s

    def scope(self, name: str) -> Scope:
        return self.scopes.setdefault(name, Scope())

    def grant(self, scope: str, bucket: int, requests: int, tokens: int, by_share: bool) -> None:
        """Record a grant, or a release if the numbers are negative. Sums never go below zero."""
        of = self.scope(scope)
        if requests < 0 or tokens < 0:
            if bucket not in of.buckets:
                return
        else:
            of.used = max(of.used, bucket)
        spent = of.buckets.setdefault(bucket, Spent())
        counted = spent.unseen if by_share else spent.seen
        for place, change in enumerate((requests, tokens)):
            counted[place] = max(0, counted[place] + change)

    def all_seen(self) -> None:
        """Record that Redis counts all grants."""
        for scope in self.scopes.values():
            for spent in scope.buckets.values():
                spent.seen = [a + b for a, b in zip(spent.seen, spent.unseen, strict=True)]
                spent.unseen = [0, 0]

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

    def idle(self, bucket: int) -> list[str]:
        """Return and forget scopes without recent use."""
        long_ago = bucket - HISTORY
        idle = [n for n, of in self.scopes.items() if of.used < long_ago and not of.leases]
        for name in idle:
            del self.scopes[name]
        return idle


def _sweep(places: Path) -> None:
    """Remove the places of fleets that are gone."""
    for of_fleet in places.glob("*"):
        with suppress(OSError):
            written = max(file.stat().st_mtime for file in (of_fleet, *of_fleet.iterdir()))
            if time.time() - written > LEFT_S:
                shutil.rmtree(of_fleet)


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
