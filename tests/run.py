"""Run the tests in parts, some of them at once, and print how far they are.

python -m tests.run test    lint, every quick test, and the core: what `make test` runs
python -m tests.run rest    every test that `make test` leaves out

Each part is one command, whose output goes to `.cache/tests/PART.log`. The log of a part that
failed is printed at the end, and the exit status is then 1. Ctrl-C, SIGTERM and a closed terminal
interrupt every part, and wait until each has stopped what it started; a second one kills them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests import missing, progress
from tests.parts import PARTS, ROOT, Part
from tests.progress import Noted, State, clock

EVERY_S, SLOWEST = 15.0, 8
# A shell starts its background jobs with SIGINT ignored, and nohup with SIGHUP.
INTERRUPTIBLE = ("env", "--default-signal=INT,HUP")
SKIPPED = "skipped.jsonl"
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Running:
    """A part that was started, in its own process group, with its log and its notes."""

    def __init__(self, part: Part, folder: Path, recorded: Mapping[str, float]) -> None:
        self.part = part
        self.log = folder / f"{part.name}.log"
        self.returned: int | None = None
        self.wall_s = 0.0
        self.noted = Noted()
        self._recorded = recorded
        self._notes = folder / f"{part.name}.jsonl"
        self._notes.unlink(missing_ok=True)
        self._began = time.monotonic()
        self._found_at = self._began
        notes = {progress.NOTED_IN: self._notes, missing.NOTED_IN: folder / SKIPPED}
        told = {name: str(file) for name, file in notes.items()}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [*INTERRUPTIBLE, "nice", "-n", str(part.nice), *part.command],
                cwd=ROOT,
                env={**os.environ, **part.environment, **told},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def look(self) -> None:
        """Read what the part noted, print the tests that failed since, and whether it ended."""
        before, self.noted = self.noted, progress.read(self._notes)
        for test in sorted(self.noted.failed - before.failed):
            print(f"FAILED {test} ({self.part.name})", flush=True)
        if self.noted.found and not before.found:
            self._found_at = time.monotonic()
        if self.returned is None:
            self.wall_s = time.monotonic() - self._began
            self.returned = self._process.poll()
            if self.returned is not None:
                how = f"failed with {self.returned}" if self.returned else "passed"
                print(f"{self.part.name} {how} in {clock(self.wall_s)}", flush=True)

    def state(self, usual_s: float) -> State:
        return State(
            usual_s=usual_s,
            started=True,
            ended=self.returned is not None,
            elapsed_s=self.wall_s,
            testing_s=time.monotonic() - self._found_at,
            share=self.noted.share(self._recorded),
        )

    def how(self) -> str:
        found = len(self.noted.found)
        return f"{len(self.noted.ended):,}/{found:,}" if found else "starts"

    def signal(self, number: int) -> None:
        if self.returned is None:
            os.killpg(self._process.pid, number)


class Run:
    """All parts of a level, from the first start to the last end. `folder` gets the logs, and
    `times` are those of earlier runs, from which the remaining time is estimated."""

    def __init__(
        self, parts: tuple[Part, ...], folder: Path, times: Mapping[str, Mapping[str, float]]
    ) -> None:
        self._parts = parts
        self._folder = folder
        self._times = times
        self._began = time.monotonic()
        self._interrupts = self._passed_on = 0
        self.running: dict[str, Running] = {}

    def interrupt(self, *_: object) -> None:
        self._interrupts += 1

    def finish(self, look_s: float = 1) -> int:
        """Run every part to its end; the exit status."""
        next_line_s = 0.0
        while self._start_what_is_ready() or self._unfinished():
            if self._interrupts > self._passed_on:
                self._pass_on_the_interrupt()
            time.sleep(look_s)
            for running in self._unfinished():
                running.look()
            if self.elapsed_s >= next_line_s and self._unfinished():
                next_line_s = self.elapsed_s + EVERY_S
                print(self._line(), flush=True)
        if self._interrupts:
            return 128 + signal.SIGINT
        assert len(self.running) == len(self._parts), "a part waits for one that is not in this run"
        return int(any(running.returned for running in self.running.values()))

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _start_what_is_ready(self) -> bool:
        """Return whether a part was started."""
        ended = {name for name, of in self.running.items() if of.returned is not None}
        ready = [of for of in self._parts if of.name not in self.running and ended >= {*of.after}]
        if self._interrupts:
            return False
        for part in ready:
            self.running[part.name] = Running(part, self._folder, self._times["tests"])
        return bool(ready)

    def _pass_on_the_interrupt(self) -> None:
        print("Interrupted: waiting until every part has stopped what it started.", flush=True)
        for running in self._unfinished():
            running.signal(signal.SIGKILL if self._passed_on else signal.SIGINT)
        self._passed_on = self._interrupts

    def _unfinished(self) -> list[Running]:
        return [running for running in self.running.values() if running.returned is None]

    def _line(self) -> str:
        states = {}
        for part in self._parts:
            usual_s = self._times["parts"].get(part.name, part.usual_s)
            running = self.running.get(part.name)
            states[part.name] = running.state(usual_s) if running else State(usual_s, part.after)
        noted = [running.noted for running in self.running.values()]
        tests = sum(len(of.ended) for of in noted), sum(len(of.found) for of in noted)
        how = {running.part.name: running.how() for running in self._unfinished()}
        is_whole = sum(bool(of.found) for of in noted) == len(self._parts)
        return progress.line(self.elapsed_s, how, tests, progress.remaining_s(states), is_whole)


def where_the_time_went(name: str, wall_s: float, ended: Mapping[str, float]) -> str:
    slowest = sorted(ended.items(), key=lambda test: -test[1])[:SLOWEST]
    lines = [f"{name}: {clock(wall_s)}, {sum(ended.values()):.0f} s of {len(ended):,} tests"]
    return "\n".join([*lines, *(f"  {seconds:6.1f} s  {test}" for test, seconds in slowest)])


def main(parts: tuple[Part, ...], folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SKIPPED).write_text("")
    kept = folder / "times.json"
    times = json.loads(kept.read_text()) if kept.exists() else {"parts": {}, "tests": {}}
    run = Run(parts, folder, times)
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, run.interrupt)
    status = run.finish()
    ran = run.running.values()
    for running in ran:
        times["tests"].update(running.noted.ended)
        if not running.returned:
            times["parts"][running.part.name] = running.wall_s
    kept.write_text(json.dumps(times))
    print("Where the time went:")
    for running in ran:
        print(where_the_time_went(running.part.name, running.wall_s, running.noted.ended))
    missing.main(folder / SKIPPED)
    failed = [running for running in ran if running.returned]
    for running in failed:
        print(f"\nThe log of {running.part.name}, which failed:\n{running.log.read_text()}")
    # once more after the logs: who sees only the end sees the names
    for running in failed:
        for test in sorted(running.noted.failed):
            print(f"FAILED {test} ({running.part.name})")
    how = f"{', '.join(of.part.name for of in failed)} failed" if failed else "all parts passed"
    print(f"After {clock(run.elapsed_s)}: {how}.", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(PARTS[sys.argv[1]], ROOT / ".cache" / "tests"))
