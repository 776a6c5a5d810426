"""A vLLM engine without a server: load it, send prompts, measure it, and close it.

It runs in a child process (`deployments.engine.vllm.offline.offline`), so that the command line
imports neither vLLM nor torch. Several engines can be loaded at once, and memory is free after
`close`. vLLM's output goes to a log file. If a child does not start or fails, the `Problem`
contains its last log line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from common.errors import Problem
from common.failure import gist, tail
from common.machine import require_fleet_packages
from weights.evaluate.statistics import TokenFigures
from weights.model.checkpoint import weight_bytes

Tokens = list[int]
SECONDS_TO_END = 10.0


@dataclass(frozen=True)
class Loaded:
    """A loaded engine. `kv_tokens` fit into the KV cache; `folder` has the model's files if vLLM
    read local ones.

    `token_ids` is a digest of the tokenizer's vocabulary. Lengths are in tokens.
    """

    load_s: float
    kv_tokens: int
    folder: Path | None
    vocabulary: int
    max_context: int
    max_step_tokens: int
    dtype: str
    token_ids: str

    @property
    def weight_bytes(self) -> int | None:
        """The size of the model's files; None if they are not safetensors in a local folder."""
        try:
            return weight_bytes(self.folder) if self.folder else None
        except Problem:
            return None


@dataclass(frozen=True)
class Generated:
    """Greedy answers to all prompts at once.

    `decode_rate`: tokens per second after every request has its first. `ttft_s` and `tpot_s` are
    means over requests. Speculation proposed `drafted` tokens in `drafts`, of which `accepted` were
    kept; 0 without it.
    """

    outputs: list[Tokens]
    seconds: float
    output_tokens: int
    ttft_s: float
    tpot_s: float
    decode_rate: float
    drafts: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class CutCounts:
    """Counts of one kind of request: of `cuts` resumed answers, `other` had different tokens.

    Of `answers` uninterrupted answers, `reruns` had different tokens in a second run. `left_out`:
    why the engine cannot resume this kind.
    """

    answers: int
    cuts: int
    other: int
    reruns: int
    left_out: str | None


@dataclass(frozen=True)
class MadeBy:
    """Identity of an engine. `proof` is the id of a proof that such engines give the same tokens.

    These have the same model, arguments, vLLM, model runner (V1 or V2), platform (cpu, cuda) and
    kind of processor, `device`. `batch_invariant`: VLLM_BATCH_INVARIANT is set.
    """

    proof: str
    device: str
    batch_invariant: bool
    runner: str
    platform: str
    dtype: str


class OfflineEngine:
    """A context with an engine; `close` ends the child."""

    def __init__(self, child: subprocess.Popen[str], model: str, log: Path) -> None:
        self._child = child
        self._model = model
        self._log = log
        self.loaded: Loaded

    @classmethod
    def start(
        cls, model: str, engine_args: Mapping[str, Any], log: Path, env: Mapping[str, str] = {}
    ) -> OfflineEngine:
        """Load `model`, a folder or a Hugging Face id, and return when it can answer.

        `env` is added to the child's environment.
        """
        require_fleet_packages()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as said:
            child = subprocess.Popen(
                [sys.executable, "-m", "deployments.engine.vllm.offline.offline"],
                cwd=Path(__file__).parents[2],
                env=_environment(model, env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                # a separate session, so that it ends with its workers, and Ctrl-C does not reach it
                start_new_session=True,
            )
        engine = cls(child, model, log)
        try:
            found = engine._ask({"model": model, "engine_args": dict(engine_args)})
        except BaseException:
            engine.close()
            raise
        folder = Path(found["folder"]) if found["folder"] else None
        engine.loaded = Loaded(**{**found, "folder": folder})
        return engine

    def tokens(self, texts: list[str]) -> list[Tokens]:
        """Encode texts like prompts, including the tokens that the tokenizer adds in front."""
        found: list[Tokens] = self._ask({"do": "tokens", "texts": texts})
        return found

    def chat_tokens(self, conversations: list[list[dict[str, str]]]) -> list[Tokens]:
        """Encode conversations by the chat template, up to the start of the answer; without one, as
        plain texts."""
        asked = {"do": "chat_tokens", "conversations": conversations}
        found: list[Tokens] = self._ask(asked)
        return found

    def text(self, ids: list[Tokens]) -> list[str]:
        found: list[str] = self._ask({"do": "text", "ids": ids})
        return found

    def generate(
        self,
        prompts: list[Tokens],
        max_tokens: int,
        *,
        ignore_eos: bool = False,
        speculative_tokens: int | None = None,
    ) -> Generated:
        """Return greedy answers to all prompts at once, within max_num_seqs.

        `speculative_tokens`: tokens to draft per step in this call, at most the configured number;
        0: none; None: as configured.
        """
        found = self._ask(
            {
                "do": "generate",
                "prompts": prompts,
                "max_tokens": max_tokens,
                "ignore_eos": ignore_eos,
                "speculative_tokens": speculative_tokens,
            }
        )
        return Generated(**found)

    def kinds_of_answers(self) -> list[str]:
        """Return the kinds of answers that can be interrupted."""
        found: list[str] = self._ask({"do": "kinds_of_answers"})
        return found

    def cut_answers(
        self, kind: str, prompts: list[Tokens], *, max_tokens: int, cuts: list[int]
    ) -> CutCounts:
        """Interrupt answers of this kind after each number of tokens in `cuts`, resume them, and
        count differences."""
        asked = {"kind": kind, "prompts": prompts, "max_tokens": max_tokens, "cuts": cuts}
        found = self._ask({"do": "cut_answers", **asked})
        return CutCounts(
            answers=len(found["tokens"]),
            cuts=found["cuts"],
            other=len(found["other"]),
            reruns=found["reruns"],
            left_out=found["left_out"],
        )

    def made_by(self) -> MadeBy:
        """Return this engine's identity, as its replicas report it."""
        return MadeBy(**self._ask({"do": "made_by"}))

    def write_logprobs(self, window: Tokens, into: Path) -> None:
        """Write log-probabilities to a file, as float16: those of the whole vocabulary at each
        token of the window except the first, given the tokens before it.
        """
        self._ask({"do": "write_logprobs", "window": window, "into": str(into)})

    def compare_logprobs(self, window: Tokens, against: Path) -> TokenFigures:
        """Compare this engine on the window with the one that wrote the file."""
        asked = {"do": "compare_logprobs", "window": window, "against": str(against)}
        return TokenFigures(**self._ask(asked))

    def close(self) -> None:
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
        try:
            self._child.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            reason = gist("\n".join(tail(self._log)), self._log.parent)
            raise self._failed(f"its process exited:  {reason}")
        answer = json.loads(line)
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer["result"]

    def _failed(self, reason: str) -> Problem:
        return Problem(f"the engine of {self._model} failed: {reason}", f"see {self._log}")


def _environment(model: str, env: Mapping[str, str]) -> dict[str, str]:
    own = {
        # the scheduler and the model run in the child process
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # functions are sent to workers, which are processes of the child
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if Path(model).is_dir():
        own["HF_HUB_OFFLINE"] = "1"
    return {**os.environ, **own, **env}
