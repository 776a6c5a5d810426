"""Constraints that compile slowly leave the engine's threads and cores to all others."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.engine.vllm.grammars.grammar_threads import (
    QUICK_THREADS,
    SLOW,
    SLOW_NICE,
    GrammarThreads,
    leave_cores_free,
)


def request(**extra_args: Any) -> Any:
    return SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra_args or None))


@pytest.fixture
def threads() -> Iterator[GrammarThreads]:
    made = GrammarThreads()
    yield made
    made.shutdown()


def priority(_: object) -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_slow_constraint_compiles_at_a_low_priority(threads: GrammarThreads) -> None:
    assert threads.submit(priority, request(**{SLOW: True})).result() == SLOW_NICE


def test_any_other_constraint_compiles_at_the_priority_of_the_engine(
    threads: GrammarThreads,
) -> None:
    own = priority(None)
    assert threads.submit(priority, request()).result() == own
    assert threads.submit(priority, request(something="else")).result() == own


def test_slow_constraints_do_not_block_the_threads_of_others(threads: GrammarThreads) -> None:
    may_end = threading.Event()
    slow = [
        threads.submit(lambda _: may_end.wait(), request(**{SLOW: True}))
        for _ in range(10 * QUICK_THREADS)
    ]
    try:
        assert threads.submit(lambda _: "compiled", request()).result(60) == "compiled"
        assert not any(one.done() for one in slow)
    finally:
        may_end.set()


def test_xgrammar_compiles_in_half_as_many_threads_as_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    xgrammar = pytest.importorskip("xgrammar")
    asked: list[int] = []
    monkeypatch.setattr(
        xgrammar.GrammarCompiler,
        "__init__",
        lambda self, *args, max_threads, **kwargs: asked.append(max_threads),
    )
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    for _ in range(2):
        leave_cores_free()
    xgrammar.GrammarCompiler("of a tokenizer", max_threads=8)
    xgrammar.GrammarCompiler("of a tokenizer", max_threads=2)
    assert asked == [3, 2]
