"""Recent deaths of a pool's engines on this node, and the delay of the next start.

    <temporary folder>/antefix-<uid>/deaths/<Ray node>-<pool>/
        deaths       a line for each: Unix seconds, cause
        alive-<pid>  locked by a running replica; without its lock the replica was killed

Ray Serve restarts a replica as soon as it is gone. An engine that dies repeatedly, for lack of
memory for example, would occupy its node with starts only. So from the third death within ten
minutes on, a start waits, twice as long each time and at most a minute. Failed starts do not count,
because Ray Serve delays those itself. Nothing here prevents a start, or raises. With
ANTEFIX_RESTART_BACK_OFF=off in a pool's `env` no start waits, for tests that kill engines.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from common.loops import forever
from common.private_folder import made_private, user_folder

logger = logging.getLogger("ray.serve")

# "killed": the replica itself was killed, by the kernel for lack of memory or by an operator.
Cause = Literal["died", "hung", "killed"]
BACK_OFF = "ANTEFIX_RESTART_BACK_OFF"
RECENT_S = 600.0
PERIOD_S = 10.0
# After this many deaths there is still no wait.
FREE_DEATHS = 2
FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 60.0


def back_off_s(deaths: int) -> float:
    """Return the delay of a start after this many deaths in the last RECENT_S, in seconds."""
    if deaths <= FREE_DEATHS:
        return 0.0
    return float(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(deaths - FREE_DEATHS - 1, 10)))


def folder_of(node_id: str, board: str) -> Path:
    """Return the folder for deaths of a pool's engines on a Ray node; a new Ray starts with an
    empty one."""
    pool = blake2b(board.encode(), digest_size=8).hexdigest()
    return user_folder() / "deaths" / f"{node_id}-{pool}"


class Deaths:
    """The deaths from the view of one replica."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._lock: int | None = None

    async def wait(self) -> None:
        """Wait until a replica may start its engine."""
        await asyncio.to_thread(self.find_killed)
        recent = await asyncio.to_thread(self.recent)
        if os.environ.get(BACK_OFF) == "off":
            return
        if wait_s := back_off_s(recent.total()):
            causes = ", ".join(f"{cause}: {count}" for cause, count in sorted(recent.items()))
            minutes = RECENT_S / 60
            logger.warning(
                "delaying the engine's start by %g s: %d engines of this pool ended on this node in"
                " the last %g minutes (%s). See docs/runbooks/AntefixEngineDeaths.md.",
                *(wait_s, recent.total(), minutes, causes),
            )
            await asyncio.sleep(wait_s)

    async def follow(self, tell: Callable[[Mapping[str, int]], None]) -> None:
        """Report the number of recent deaths every PERIOD_S until cancelled."""

        async def look() -> None:
            tell(await asyncio.to_thread(self.recent))

        fails = "failed to count recent engine deaths"
        await forever("engine_deaths", look, PERIOD_S, fails=fails, logger=logger)

    def recent(self) -> Counter[str]:
        """Return deaths of the last RECENT_S by cause; empty if they cannot be read."""
        with self._tried("read"):
            now, found = self._clock(), Counter[str]()
            file = self._folder / "deaths"
            for line in file.read_text().splitlines() if file.exists() else ():
                at, _, cause = line.partition(" ")
                # if the clock was set back, later times do not stay recent forever
                if now - RECENT_S < float(at) <= now + 1:
                    found[cause] += 1
            return found
        return Counter()

    def find_killed(self) -> None:
        """Count replicas that were killed and could not report it."""
        with self._tried("look for"):
            for marker in self._folder.glob("alive-*"):
                lock = os.open(marker, os.O_RDWR)
                try:
                    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    marker.unlink()
                except BlockingIOError:
                    continue  # the replica is alive
                finally:
                    os.close(lock)
                self.add("killed")

    def alive(self) -> None:
        """Record that this process's replica runs from now on."""
        with self._tried("mark the replica for"):
            made_private(user_folder())
            self._folder.mkdir(parents=True, exist_ok=True)
            new = self._folder / f"new-{os.getpid()}"
            self._lock = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(self._marker)

    def left(self) -> None:
        """Record its planned end."""
        with self._tried("unmark the replica for"):
            self._marker.unlink(missing_ok=True)

    def add(self, cause: Cause) -> None:
        """Record that this replica's engine died, or that another replica was found killed."""
        with self._tried("count"):
            made_private(user_folder())
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "deaths").open("a") as file:
                file.write(f"{self._clock():.3f} {cause}\n")
        if cause != "killed":
            self.left()

    @property
    def _marker(self) -> Path:
        return self._folder / f"alive-{os.getpid()}"

    @contextmanager
    def _tried(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            logger.warning("failed to %s deaths of engines: %s", what, error)
