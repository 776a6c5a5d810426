"""A replica and its engine with nothing in them, and a real witness: python -m tests.fakes.watched

The engine is "idle", or "stuck" in a step, and has a worker. When it is, the replica writes the
process ids of the engine, its worker and the witness; it leaves by itself when it is told that the
engine hangs.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import time
from pathlib import Path

from autoscaling.step_bound import TELLING_STEPS
from deployments.engine import processes
from deployments.engine.hang import EngineHealth
from deployments.engine.vllm.heartbeat import STACKS_SIGNAL, CoreHeart, HeartbeatFile, LoopPhase
from deployments.engine.witness import Witness
from tests.fakes.steps import step

STEP = step(known={"one": (1, 7)})


def engine(path: Path, does: str) -> None:
    faulthandler.register(STACKS_SIGNAL, chain=False)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    heart = CoreHeart(HeartbeatFile(path), hidden_size=64)
    for _ in range(TELLING_STEPS):
        heart.began(STEP)
        heart.ended(STEP)
    heart.say(LoopPhase.IDLE)
    if does == "stuck":
        heart.began(STEP)
    time.sleep(600)


def replica(does: str) -> None:
    witness = Witness()
    command = [sys.executable, "-m", __spec__.name, does, str(witness.path)]
    core = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    file = HeartbeatFile(witness.path)
    while file.core.phase is not (LoopPhase.STEP if does == "stuck" else LoopPhase.IDLE):
        time.sleep(0.01)
    (worker,) = processes.with_children(core.pid)[1:]
    print(core.pid, worker, witness.pid, flush=True)
    while witness.verdict[0] is not EngineHealth.HUNG:
        witness.beat()
        time.sleep(0.05)
    print(witness.verdict[1], flush=True)
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        engine(Path(sys.argv[2]), sys.argv[1])
    else:
        replica(sys.argv[1])
