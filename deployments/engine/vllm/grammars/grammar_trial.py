"""Compile and follow a constraint in a process that can be killed, before the engine does.

vLLM compiles in threads of its engine, without a limit, and never cancels a compile. A server
process forks a worker for each trial. The worker runs vLLM's own code, and the kernel kills it if
it exceeds its CPU time or memory. So an engine only compiles constraints that a worker has
compiled, and whose tokens take it little time (`grammar_follow.py`).

The server is forked from the engine's process before that loads anything (`plugin.py`): vLLM is
imported by then, so it costs neither an import nor its memory again. It ends with the engine. It
loads the tokenizer for the first trial. One request per connection, on a Unix socket:

    request                             answer, and the end of the connection
    S and a pickle of a vLLM config     {}
    T, a letter of TrialKind, and       BEGAN, and then: a TrialVerdict as JSON; STARVED; nothing:
      JSON of StructuredOutputsParams     the worker was killed. Without BEGAN there was no trial

Source: `_validate_structured_outputs` in vllm/sampling_params.py and vllm/v1/structured_output/ of
vLLM 0.32.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import math
import os
import pickle
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from deployments.engine.vllm.constraints.constraint_parts import parts_of
from deployments.engine.vllm.grammars.grammar_follow import (
    CoreSlowness,
    Follower,
    Vocabulary,
    most_token_ms,
)
from deployments.wire.plain_constraints import KINDS

logger = logging.getLogger("vllm.antefix")

# For the engine's process: the server's socket.
SOCKET = "ANTEFIX_GRAMMAR_TRIALS"
SETUP, TRIAL, BEGAN, STARVED = b"S", b"T", b"B", b"starved"

# Limit of a quick trial's compile; a constraint that compiles within it does not slow an engine.
# It is followed within another limit.
QUICK_CPU_S, QUICK_FOLLOW_CPU_S = 0.25, 1.0
# Limit of any other trial. xgrammar takes 2 s for a string with `maxLength` 255 or above and a
# vocabulary of 49,152 tokens. Each other `maxLength` takes the same again.
MOST_CPU_S = 10
# Parts are compiled and followed within this time of the trial. Those of a grammar of a hundred
# recursive rules may take longer: each part compiles all rules again.
PARTS_CPU_S = MOST_CPU_S / 2
# In addition to the server's memory: xgrammar took 35 MB for 200 properties with a pattern each.
MOST_MEMORY_BYTES = 512 * 1024 * 1024
# vLLM also checks a constraint in the replica's event loop.
MOST_CHECK_S = 0.2
# The engine's threads have priority.
NICE = 10
# A trial on idle cores is starved if it gets less than this share of a core for this long.
STARVED_SHARE, STARVED_S = 0.05, 3.0
_PR_SET_PDEATHSIG = 1


class TrialKind(StrEnum):
    """`QUICK` has QUICK_CPU_S. The others have MOST_CPU_S: `IDLE` runs only on idle cores; `LONG`
    takes a small share of a core."""

    QUICK = "q"
    IDLE = "i"
    LONG = "l"


@dataclass(frozen=True)
class TrialVerdict:
    """`cpu_s`: the CPU seconds of the compile; `backend`: vLLM's name of the compiler;
    `cached_bytes`: the size of the compiled grammar in that backend's cache, 0: it has none;
    `check_s`: the part of `cpu_s` for vLLM's check before the compile; `token_ms`: the CPU time per
    token, and `most_token_ms` what is allowed."""

    fits: bool
    cpu_s: float = 0.0
    backend: str = ""
    cached_bytes: int = 0
    check_s: float = 0.0
    token_ms: float = 0.0
    most_token_ms: float = 0.0

    def refusal(self, what: str) -> str:
        """Return a sentence with the limit that `what` exceeds."""
        if self.check_s > MOST_CHECK_S:
            return (
                f"The engine takes {self.check_s:.2f} s of CPU time to check {what} before it"
                f" compiles, but at most {MOST_CHECK_S} s are allowed."
            )
        if self.token_ms > self.most_token_ms:
            return (
                f"In an answer, the engine takes {_rounded(self.token_ms)} ms of CPU time per token"
                f" to follow {what}, but at most {self.most_token_ms:.1f} ms are allowed."
            )
        return (
            f"The engine cannot compile {what} within {MOST_CPU_S} s of CPU time and"
            f" {MOST_MEMORY_BYTES // 2**20} MiB of memory."
        )

    @classmethod
    def from_answer(cls, answer: bytes, kind: TrialKind) -> TrialVerdict | None:
        """Parse an answer. None: it takes longer than a quick trial may, or found no idle core.

        Raises ConnectionError if there was no trial: the engine and its server may have ended.
        """
        if not answer.startswith(BEGAN):
            raise ConnectionError("the trial of a grammar did not begin")
        said = answer.removeprefix(BEGAN)
        if said == STARVED:
            return None
        if said:
            return cls(**json.loads(said))
        return None if kind == TrialKind.QUICK else cls(fits=False, cpu_s=MOST_CPU_S)


def _rounded(ms: float) -> str:
    return f"{ms:.1f}" if ms < 10_000 else "10,000 or more"


def message_of(kind: TrialKind, asked: Mapping[str, Any]) -> bytes:
    """Return the message to the server; `asked` as for `_Compiler.tried`."""
    return TRIAL + kind.encode() + json.dumps(asked).encode()


def begin(path: Path) -> None:
    """Fork the server of the trials at this socket, once per engine.

    The caller has one Python thread, and holds no lock. Raises OSError if the socket exists
    already.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(64)
    if os.fork():
        listener.close()
        return
    try:
        _be_a_server(listener)
        _serve(listener)
    finally:
        os._exit(1)


def _be_a_server(listener: socket.socket) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the server does not wait for its workers
    # an inherited end of a pipe would hide the end of the engine
    os.closerange(3, listener.fileno())
    os.closerange(listener.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.nice(NICE)
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle("antefix-grammar-trials")


def _serve(listener: socket.socket) -> None:
    compiler: _Compiler | None = None
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                asked = b"".join(iter(lambda c=connection: c.recv(1 << 16), b""))  # type: ignore[misc]
                if asked[:1] == SETUP:
                    compiler = _Compiler(pickle.loads(asked[1:]))
                    gc.collect()
                    gc.freeze()  # so that the workers keep sharing this memory
                    connection.sendall(b"{}")
                elif asked[:1] == TRIAL and compiler is not None and os.fork() == 0:
                    _work(compiler, asked[1:], connection)
            except Exception:
                logger.exception("failed to start the trial of a grammar")


def _work(compiler: _Compiler, asked: bytes, connection: socket.socket) -> None:
    """Run the worker, which ends this process."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with contextlib.suppress(OSError):  # the first process to be killed if memory is short
            Path("/proc/self/oom_score_adj").write_text("1000")
        kind = TrialKind(asked[:1].decode())
        connection.sendall(BEGAN)
        _watch(connection, kind)
        verdict = compiler.tried(json.loads(asked[1:]), kind)
        connection.sendall(json.dumps(asdict(verdict)).encode())
    finally:
        os._exit(0)


def _watch(connection: socket.socket, kind: TrialKind) -> None:
    """End this process once its verdict is useless because the other end of the connection is
    closed, and once it lacks idle cores.

    The thread stays at the server's priority.
    """

    def watch() -> None:
        gone, spent_s = select.poll(), time.process_time()
        gone.register(connection, 0)  # registers for POLLHUP and POLLERR only
        while not gone.poll(1000 * STARVED_S):
            before_s, spent_s = spent_s, time.process_time()
            if kind == TrialKind.IDLE and spent_s - before_s < STARVED_SHARE * STARVED_S:
                connection.sendall(STARVED)
                break
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _limit(kind: TrialKind, memory_bytes: int) -> None:
    """Set the limits. The kernel kills a process that exceeds its CPU time."""
    if kind == TrialKind.IDLE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if kind == TrialKind.QUICK:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, QUICK_CPU_S)
    seconds = math.ceil(time.process_time()) + MOST_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    most = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _is_after(process_s: float) -> bool:
    return time.process_time() > process_s


def _follower(tokenizer: Any, model_config: Any) -> Follower:
    size = model_config.get_vocab_size()
    return Follower(
        Vocabulary.of(tokenizer, size),
        int(model_config.max_model_len),
        most_token_ms(size),
        slowness=CoreSlowness(),
    )


class _Compiler:
    """vLLM's backends with an engine's tokenizer."""

    def __init__(self, config: Any) -> None:
        from vllm.tokenizers import cached_tokenizer_from_config

        self._config = config
        self._tokenizer = cached_tokenizer_from_config(model_config=config.model_config)
        self._backends: dict[str, Any] = {}
        self._follower = _follower(self._tokenizer, config.model_config)
        chosen = config.structured_outputs_config.backend
        for name in ("xgrammar", "guidance") if chosen == "auto" else (chosen,):
            try:
                self._backend(name)
            except Exception as error:  # vLLM reports it for the request that needs the backend
                logger.info(
                    "failed to load the grammar backend %s; not trying its grammars: %r",
                    name,
                    error,
                )

    def tried(self, asked: Mapping[str, Any], kind: TrialKind) -> TrialVerdict:
        """Try a constraint. `asked` are fields of vLLM's StructuredOutputsParams; `backend`: the
        one for all constraints of this engine, once it has compiled one."""
        from vllm.sampling_params import SamplingParams, StructuredOutputsParams
        from vllm.v1.structured_output.request import get_structured_output_key

        fields = dict(asked)
        name = fields.pop("backend", "")
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**fields))
        if name:  # loading the vocabulary may take seconds, which do not count for the constraint
            self._backend(name)
        _limit(kind, MOST_MEMORY_BYTES)
        began = time.process_time()
        try:
            params._validate_structured_outputs(
                self._config.model_config, self._config.structured_outputs_config, self._tokenizer
            )
            checked_s = time.process_time() - began
            constraint = params.structured_outputs
            name = name or constraint._backend
            key, spec = get_structured_output_key(constraint)
            backend = self._backend(name)
            grammar = backend.compile_grammar(key, spec)
            grammar.fill_bitmask(backend.allocate_token_bitmask(1), 0)  # llguidance compiles here
        except MemoryError:
            return TrialVerdict(fits=False, cpu_s=time.process_time() - began, backend=name)
        except Exception as error:
            # vLLM raises and reports the same error
            fits = "bad_alloc" not in str(error)
            return TrialVerdict(fits, time.process_time() - began, name)
        cpu_s = time.process_time() - began
        if kind == TrialKind.QUICK:
            signal.setitimer(signal.ITIMER_PROF, QUICK_FOLLOW_CPU_S)
        compiled = getattr(grammar, "ctx", None)
        cached = compiled.memory_size_bytes if name == "xgrammar" and compiled else 0
        parts_end = began + PARTS_CPU_S
        token_ms = self._token_ms(grammar, backend, fields, lambda: _is_after(parts_end))
        most_ms = self._follower.most_ms
        fits = checked_s <= MOST_CHECK_S and token_ms <= most_ms
        return TrialVerdict(fits, cpu_s, name, cached, checked_s, token_ms, most_ms)

    def _token_ms(
        self, grammar: Any, backend: Any, fields: Mapping[str, Any], is_late: Callable[[], bool]
    ) -> float:
        """Return the CPU time per token of a constraint, or of its slowest part."""
        from vllm.sampling_params import StructuredOutputsParams
        from vllm.v1.structured_output.request import get_structured_output_key

        def compiled(kind: str, part: Any) -> Any:
            key, spec = get_structured_output_key(StructuredOutputsParams(**{kind: part}))
            return backend.compile_grammar(key, spec)

        follower, mask = self._follower, backend.allocate_token_bitmask(1)
        found = follower.token_ms(grammar, mask)
        if found > follower.most_ms:
            return found
        parts = [part for kind in KINDS for part in parts_of(kind, fields.get(kind))]
        compiles = [partial(compiled, kind, part) for kind, part in parts]
        return max(found, follower.parts_ms(compiles, mask, is_late))

    def _backend(self, name: str) -> Any:
        if name not in self._backends:
            self._backends[name] = self._made(name)
        return self._backends[name]

    def _made(self, name: str) -> Any:
        from vllm.v1.structured_output.backend_guidance import GuidanceBackend
        from vllm.v1.structured_output.backend_lm_format_enforcer import LMFormatEnforcerBackend
        from vllm.v1.structured_output.backend_outlines import OutlinesBackend
        from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

        made = {
            "xgrammar": XgrammarBackend,
            "guidance": GuidanceBackend,
            "outlines": OutlinesBackend,
            "lm-format-enforcer": LMFormatEnforcerBackend,
        }[name]
        size = self._config.model_config.get_vocab_size()
        return made(self._config, tokenizer=self._tokenizer, vocab_size=size)
