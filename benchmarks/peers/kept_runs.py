"""Runs that are kept, a line of JSON each: what was measured once need not be measured again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.results import PeerRun, Unmeasured

Run = PeerRun | Unmeasured


class KeptRuns:
    """In the file, if there is one, as they come. Raises ValueError for lines that are no runs."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        told = file.read_text().splitlines() if file is not None and file.exists() else []
        self._runs = [_read(json.loads(line)) for line in told]

    @property
    def measured(self) -> list[PeerRun]:
        return [run for run in self._runs if isinstance(run, PeerRun)]

    @property
    def unmeasured(self) -> list[Unmeasured]:
        return [run for run in self._runs if isinstance(run, Unmeasured)]

    def have(self, case: str, seed: int, routers: Collection[str]) -> bool:
        """Of one case and seed all are compared with each other, so all are run in one go."""
        return set(routers) <= {run.router for run in self._runs if _is_of(run, case, seed)}

    def replace(self, case: str, seed: int, runs: Sequence[Run]) -> None:
        self._runs = [run for run in self._runs if not _is_of(run, case, seed)] + [*runs]
        if self._file is not None:
            lines = (json.dumps(dataclasses.asdict(run)) for run in self._runs)
            self._file.write_text("".join(f"{line}\n" for line in lines))


def _is_of(run: Run, case: str, seed: int) -> bool:
    return (run.case, run.seed) == (case, seed)


def _read(told: dict[str, Any]) -> Run:
    try:
        return Unmeasured(**told) if "why" in told else PeerRun(**told)
    except TypeError as error:
        raise ValueError(f"{told} is no run of this release: delete its line ({error})") from None
