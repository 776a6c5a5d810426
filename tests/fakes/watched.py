"""A replica and its engine with nothing in them, and a real witness: python -m tests.fakes.watched

The engine is "idle", "starves" after a step without memory, or is "stuck" in a step until SIGUSR1,
and has a worker. REPORT: a report of the replica's death. When it is, the replica
writes the process ids of the engine, its worker and the witness. When the witness says that the
engine hangs it writes why and leaves; with "suspect" as a second argument nothing is to be ended:
it stays, and writes "healthy" once that is the verdict.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from autoscaling.learned.step_bound import TELLING_STEPS
from deployments.engine.vllm.watch.heartbeat import (
    STACKS_SIGNAL,
    CoreHeart,
    HeartbeatFile,
    LoopPhase,
)
from deployments.engine.watchdog import processes
from deployments.engine.watchdog.death_report import DeathReport
from deployments.engine.watchdog.hang import EngineHealth
from deployments.engine.watchdog.witness import Witness
from tests.fakes.steps import step

# The name of a variable.
REPORT = "ANTEFIX_TEST_DEATH_REPORT"
STEP = step(known={"one": (1, 7)})


def engine(path: Path, does: str) -> None:
    faulthandler.register(STACKS_SIGNAL, chain=False)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    heart = CoreHeart(HeartbeatFile(path), hidden_size=64)
    for _ in range(TELLING_STEPS):
        heart.began(STEP)
        heart.ended(STEP)
    heart.say(LoopPhase.IDLE)
    if does == "starves":
        heart.failed(RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."))
    if does == "stuck":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        heart.began(STEP)
        signal.sigwait({signal.SIGUSR1})
        heart.ended(STEP)
        heart.say(LoopPhase.IDLE)
    time.sleep(600)


def replica(does: str, ends_hung: bool) -> None:
    told = os.environ.get(REPORT)
    witness = Witness(ends_hung, DeathReport.from_json(told) if told else None)
    command = [sys.executable, "-m", __spec__.name, does, "engine", str(witness.path)]
    core = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    file = HeartbeatFile(witness.path)
    while file.core.phase is not (LoopPhase.STEP if does == "stuck" else LoopPhase.IDLE):
        time.sleep(0.01)
    (worker,) = processes.with_children(core.pid)[1:]
    print(core.pid, worker, witness.pid, flush=True)
    _beat_until(witness, EngineHealth.HUNG)
    print(witness.verdict[1], flush=True)
    if not ends_hung:
        _beat_until(witness, EngineHealth.HEALTHY)
        print("healthy", flush=True)
        _beat_until(witness, EngineHealth.HUNG)
    os._exit(3)


def _beat_until(witness: Witness, health: EngineHealth) -> None:
    while witness.verdict[0] is not health:
        witness.beat()
        time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[2] == "engine":
        engine(Path(sys.argv[3]), sys.argv[1])
    else:
        replica(sys.argv[1], ends_hung=sys.argv[2] == "restart")
