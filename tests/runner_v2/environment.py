"""The environment of a process in which vLLM uses its model runner V2.

V1, the one of vLLM's CPU build, is what all other tests of real engines run under.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cli.local.overlay_packages import overlay_packages
from deployments.engine.vllm.offline.answer_kinds import KINDS
from tests.runner_v2.interpreter import ASYNC

REPOSITORY = Path(__file__).parents[2]
LOCK = REPOSITORY / "requirements" / "interpreter.lock"
V2, V2_ASYNC = "V2", "V2 async"
RUNNERS = (V2, V2_ASYNC)
# In the environment: which of these.
RUNNER = "ANTEFIX_TEST_RUNNER"
METHODS = ("draft_model", "eagle", "eagle3", "ngram", "ngram_gpu")
# On GPUs vLLM schedules drafts of `ngram` synchronously, and others asynchronously.
METHODS_OF = {V2: ("ngram",), V2_ASYNC: ("draft_model", "eagle", "eagle3", "ngram_gpu")}
# Both restore the same things of an answer: its tokens, a seed's draws and a constraint's state.
# Synchronously, one kind stands for each.
KINDS_OF = {V2: ("greedy", "seeded", "regex"), V2_ASYNC: tuple(KINDS)}
PACKAGE = "tests.runner_v2.interpreter"
ENTRY_POINTS = f"""\
[triton.backends]
cpu = {PACKAGE}

[vllm.general_plugins]
interpreter = {PACKAGE}:patch
"""


def environment(runner: str, folder: Path) -> Mapping[str, str]:
    """For a process of Python's, without its garbage collector, which would look through all that
    is imported. `folder` is an empty one for it.

    Raises Problem where Triton cannot be installed.
    """
    (folder / "sitecustomize.py").write_text("import gc\ngc.disable()\n")
    info = folder / "antefix_interpreter-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: antefix-interpreter\nVersion: 0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    triton = overlay_packages("interpreter", "Triton", LOCK, lambda *progress: None)
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        RUNNER: runner,
        # compiling takes longer than a few drafts of n-grams
        "NUMBA_DISABLE_JIT": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, folder, triton))),
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        ASYNC: "1" if runner == V2_ASYNC else "0",
    }
