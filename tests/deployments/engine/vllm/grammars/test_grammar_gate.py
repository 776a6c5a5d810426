"""Which constraints go into an engine, when; the trials are played."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from deployments.engine.vllm.grammars import grammar_gate
from deployments.engine.vllm.grammars.constraints import Unfit
from deployments.engine.vllm.grammars.grammar_follow import REQUEST_MS
from deployments.engine.vllm.grammars.grammar_gate import GrammarGate
from deployments.engine.vllm.grammars.grammar_trial import (
    BEGAN,
    QUICK_CPU_S,
    SETUP,
    STARVED,
    TrialKind,
    TrialVerdict,
)
from deployments.engine.vllm.grammars.trial_client import TrialClient
from deployments.wire.plain_constraints import is_plain

QUICK, LONG = TrialVerdict(True, 0.01, "xgrammar"), TrialVerdict(True, 2.0, "xgrammar", 1024)


@dataclass
class Asked:
    """As vLLM's StructuredOutputsParams."""

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    _backend: str | None = None


@dataclass
class Trials:
    """Answers each trial by its pattern, once it may; b"": the worker was killed.

    `kinds` and `backends`: of each that was tried.
    """

    verdicts: dict[str, TrialVerdict | None] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    kinds: list[TrialKind] = field(default_factory=list)
    backends: list[str] = field(default_factory=list)
    no_idle_core: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None
    setups: int = 0
    begin: bool = True
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read()
        if asked[:1] == SETUP:
            self.setups += 1
            writer.write(b"{}")
        else:
            kind, fields = TrialKind(asked[1:2].decode()), json.loads(asked[2:])
            pattern = fields["regex"]
            self.backends.append(fields["backend"])
            async with self.came:
                self.tried.append(pattern)
                self.kinds.append(kind)
                self.came.notify_all()
            if not self.begin:
                writer.close()
                return
            writer.write(BEGAN)
            if kind == TrialKind.IDLE and self.no_idle_core is not None:
                await self.no_idle_core(writer)
                return
            if kind != TrialKind.QUICK or pattern not in self.verdicts:
                await self.may_end.wait()
            verdict = self.verdicts.get(pattern, QUICK)
            if verdict and (kind != TrialKind.QUICK or verdict.cpu_s < QUICK_CPU_S):
                writer.write(json.dumps(asdict(verdict)).encode())
        writer.close()


@asynccontextmanager
async def gate_before(
    trials: Trials, folder: Path, waits: bool = False, **more: Any
) -> AsyncIterator[Any]:
    if not waits:
        trials.may_end.set()
    path = folder / "trials"
    server = await asyncio.start_unix_server(trials.answer, str(path))
    try:
        trying = TrialClient(path, {"a": "config"}, idle_s=0.2)
        yield GrammarGate(trying, at_once=2, **more)
    finally:
        server.close()


async def settle(trials: Trials, count: int) -> None:
    async with asyncio.timeout(60), trials.came:
        await trials.came.wait_for(lambda: len(trials.tried) >= count)


@pytest.mark.parametrize(
    "plain",
    [
        Asked(choice=["yes", "no"]),
        Asked(json_object=True),
        Asked(json={"type": "object", "properties": {"a": {"type": "string"}}}),
    ],
)
async def test_a_plain_constraint_is_not_tried(plain: Asked, tmp_path: Path) -> None:
    trials = Trials()
    async with gate_before(trials, tmp_path) as gate:
        assert await gate.admit(plain, "a") is None
    assert (trials.tried, trials.setups) == ([], 0)


async def test_a_constraint_that_is_not_plain_is_tried_once(tmp_path: Path) -> None:
    trials = Trials()
    async with gate_before(trials, tmp_path) as gate:
        for tenant in "abc":
            assert await gate.admit(Asked(regex="x+"), tenant) is None
        assert gate.results == {"fits": 1, "known": 2}
    assert (trials.tried, trials.setups) == (["x+"], 1)


async def test_a_constraint_whose_worker_was_killed_is_rejected_and_never_tried_again(
    tmp_path: Path,
) -> None:
    trials = Trials(verdicts={"bomb": None})
    async with gate_before(trials, tmp_path) as gate:
        for _ in range(2):
            with pytest.raises(Unfit, match="cannot compile the regular expression within") as e:
                await gate.admit(Asked(regex="bomb"), "a")
            assert e.value.parameter == "structured_outputs.regex"
        assert await gate.admit(Asked(regex="x+"), "a") is None
    assert trials.tried == ["bomb", "bomb", "x+"]


async def test_a_tenants_trials_run_one_at_a_time_without_delaying_plain_constraints(
    tmp_path: Path,
) -> None:
    trials = Trials()
    async with gate_before(trials, tmp_path, waits=True) as gate:
        asking = [asyncio.ensure_future(gate.admit(Asked(regex=f"x{i}"), "a")) for i in range(3)]
        await settle(trials, 1)
        assert await gate.admit(Asked(choice=["yes", "no"]), "b") is None
        assert await gate.admit(Asked(choice=["yes", "no"]), "a") is None
        assert trials.tried == ["x0"]
        trials.may_end.set()
        assert await asyncio.gather(*asking) == [None, None, None]


async def test_a_long_compile_in_the_engine_keeps_the_tenants_turn_until_its_first_token(
    tmp_path: Path,
) -> None:
    trials = Trials(verdicts={"long": LONG})
    async with gate_before(trials, tmp_path) as gate:
        turn = await gate.admit(Asked(regex="long"), "a")
        assert turn is not None
        trials.verdicts["other"] = LONG
        second = asyncio.ensure_future(gate.admit(Asked(regex="other"), "a"))
        assert await gate.admit(Asked(regex="b's"), "b") is None
        await settle(trials, 4)
        assert sorted(trials.tried) == ["b's", "long", "long", "other"]
        turn.compiled()
        assert await second is not None


async def test_a_constraint_that_compiles_quickly_never_waits_for_one_that_takes_long(
    tmp_path: Path,
) -> None:
    trials = Trials(verdicts={"long": LONG, "longer": LONG, "longest": LONG, "x+": QUICK})
    async with gate_before(trials, tmp_path, waits=True) as gate:
        patterns = ("long", "longer", "longest")
        asking = [
            asyncio.ensure_future(gate.admit(Asked(regex=pattern), pattern)) for pattern in patterns
        ]
        await settle(trials, 5)
        assert await gate.admit(Asked(regex="x+"), "long") is None
        assert gate.longest_wait_s > 0  # of the third tenant, for one of two turns
        assert gate.stuck_s == 0  # gateways hold constrained requests for it
        trials.may_end.set()
        for turn in await asyncio.gather(*asking[:2]):
            turn.compiled()
        assert await asking[2] is not None
    quick, idle = TrialKind.QUICK, TrialKind.IDLE
    assert sorted(trials.kinds) == sorted([quick] * 4 + [idle] * 3)


async def test_a_short_queue_of_quick_trials_is_not_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials()
    async with gate_before(trials, tmp_path, waits=True) as gate:
        asking = [
            asyncio.ensure_future(gate.admit(Asked(regex=name), name))
            for name in ("a+", "b+", "c+")
        ]
        await settle(trials, 2)
        assert gate.longest_wait_s > 0  # of the third tenant, for one of two turns
        assert gate.stuck_s == 0
        monkeypatch.setattr(grammar_gate, "STUCK_S", 0.0)
        assert gate.stuck_s > 0
        trials.may_end.set()
        await asyncio.gather(*asking)


async def says_so(writer: asyncio.StreamWriter) -> None:
    writer.write(STARVED)
    writer.close()


async def says_nothing(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(1.0)
    writer.close()


@pytest.mark.parametrize("no_idle_core", [says_so, says_nothing])
async def test_a_trial_without_an_idle_core_restarts_with_a_share_of_one(
    tmp_path: Path, no_idle_core: Callable[[asyncio.StreamWriter], Awaitable[None]]
) -> None:
    trials = Trials(verdicts={"long": LONG}, no_idle_core=no_idle_core)
    async with gate_before(trials, tmp_path) as gate:
        assert await gate.admit(Asked(regex="long"), "a") is not None
    assert trials.kinds == [TrialKind.QUICK, TrialKind.IDLE, TrialKind.LONG]


async def test_a_quick_trial_that_does_not_end_in_time_is_followed_by_a_long_one(
    tmp_path: Path,
) -> None:
    trials = Trials()
    async with gate_before(trials, tmp_path, waits=True) as served:
        del served
        gate = GrammarGate(TrialClient(tmp_path / "trials", {}, quick_s=0.1), at_once=2)
        asking = asyncio.ensure_future(gate.admit(Asked(regex="x+"), "a"))
        await settle(trials, 2)
        trials.may_end.set()
        assert await asking is None
        assert gate.results == {"fits": 1}
    assert trials.kinds == [TrialKind.QUICK, TrialKind.IDLE]


async def test_a_constraint_that_vllm_checks_too_long_is_rejected_with_the_bound(
    tmp_path: Path,
) -> None:
    checked = TrialVerdict(fits=False, cpu_s=0.24, backend="guidance", check_s=0.23)
    async with gate_before(Trials(verdicts={"x+": checked}), tmp_path) as gate:
        with pytest.raises(Unfit, match=r"takes 0\.23 s of CPU time to check .* at most 0\.2 s"):
            await gate.admit(Asked(regex="x+"), "a")


async def test_a_constraint_that_the_engine_ended_is_rejected_from_then_on(tmp_path: Path) -> None:
    trials = Trials()
    plain = Asked(choice=["yes", "no"])
    async with gate_before(trials, tmp_path) as gate:
        for one in (Asked(regex="x+"), plain):
            assert await gate.admit(one, "a") is None
            gate.stopped(one, 50.0)
            with pytest.raises(Unfit, match="ms of CPU time per token to follow the"):
                await gate.admit(one, "b")
        assert gate.results["stopped"] == gate.results["rejected"] == 2
        assert await gate.admit(Asked(choice=["no"]), "b") is None


async def test_a_constraint_that_is_slow_in_several_sequences_is_served_in_one_sequence(
    tmp_path: Path,
) -> None:
    async with gate_before(Trials(), tmp_path) as gate:
        one = Asked(regex="x+")
        assert await gate.admit(one, "a", 8) is None
        gate.stopped(one, 50 / 8)
        with pytest.raises(Unfit, match="in 8 sequences"):
            await gate.admit(one, "b", 8)
        assert await gate.admit(one, "b", 1) is not None


async def test_each_draft_of_a_sequence_counts_as_a_mask(tmp_path: Path) -> None:
    fits = TrialVerdict(True, 0.01, "xgrammar", token_ms=3.0, most_token_ms=5.0)
    trials = Trials(verdicts={"x+": fits})
    async with gate_before(trials, tmp_path, masks_per_step=5) as gate:
        assert await gate.admit(Asked(regex="x+"), "a", 2) is not None
        with pytest.raises(Unfit, match=r"45\.0 ms of CPU time per token"):
            await gate.admit(Asked(regex="x+"), "a", 3)


async def test_every_trial_uses_the_configured_backend(tmp_path: Path) -> None:
    trials = Trials()
    async with gate_before(trials, tmp_path, backend="guidance") as gate:
        assert await gate.admit(Asked(json={"type": "object"}), "a") is None
        assert await gate.admit(Asked(regex="x+"), "a") is None
    assert trials.backends == ["guidance"]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": False}},
        {"properties": {"a": {"enum": []}}},
        {"anyOf": [False, {"type": "string"}]},
        {"items": False},
    ],
)
def test_a_schema_for_which_vllm_may_choose_another_backend_is_not_plain(schema: Any) -> None:
    assert not is_plain("json", schema)
    assert is_plain("json", {"type": "object", "additionalProperties": False})


async def test_a_constraint_that_is_slow_to_follow_is_rejected_with_its_time_and_the_bound(
    tmp_path: Path,
) -> None:
    slow = TrialVerdict(False, 0.01, "xgrammar", token_ms=142.0, most_token_ms=4.0)
    async with gate_before(Trials(verdicts={"x+": slow}), tmp_path) as gate:
        with pytest.raises(
            Unfit, match=r"takes 142\.0 ms of CPU time per token .* at most 4\.0 ms"
        ):
            await gate.admit(Asked(regex="x+"), "a")


async def test_a_constraint_that_is_slow_in_many_sequences_is_rejected_with_the_possible_n(
    tmp_path: Path,
) -> None:
    costly = TrialVerdict(True, 0.01, "xgrammar", token_ms=4.5, most_token_ms=5.0)
    async with gate_before(Trials(verdicts={"x+": costly}), tmp_path) as gate:
        for _ in range(2):
            with pytest.raises(Unfit, match=r"36\.0 ms .* in 8 sequences, but at most 32") as error:
                await gate.admit(Asked(regex="x+"), "a", sequences=8)
            assert error.value.parameter == "n"
        assert await gate.admit(Asked(regex="x+"), "a", sequences=7) is not None


async def test_a_constraint_that_the_engine_has_compiled_needs_no_turn(tmp_path: Path) -> None:
    trials = Trials(verdicts={"long": LONG})
    async with gate_before(trials, tmp_path) as gate:
        turn = await gate.admit(Asked(regex="long"), "a")
        assert turn is not None
        waiting = [asyncio.ensure_future(gate.admit(Asked(regex="long"), "a")) for _ in range(3)]
        await asyncio.sleep(0)
        turn.compiled()
        assert await asyncio.gather(*waiting) == [None, None, None]
        assert await gate.admit(Asked(regex="long"), "b") is None


async def test_a_client_that_leaves_does_not_give_its_tenant_another_turn_early(
    tmp_path: Path,
) -> None:
    trials = Trials()
    async with gate_before(trials, tmp_path, waits=True) as gate:
        left = asyncio.ensure_future(gate.admit(Asked(regex="x0"), "a"))
        await settle(trials, 1)
        left.cancel()
        second = asyncio.ensure_future(gate.admit(Asked(regex="x1"), "a"))
        others = asyncio.ensure_future(gate.admit(Asked(regex="b's"), "b"))
        await settle(trials, 2)
        assert trials.tried == ["x0", "b's"]
        trials.may_end.set()
        assert await others is None
        assert await second is None


async def test_without_trials_a_constraint_is_admitted_with_a_turn(tmp_path: Path) -> None:
    gate = GrammarGate(TrialClient(tmp_path / "nothing", None))
    turn = await gate.admit(Asked(regex="x+"), "a")
    assert turn is not None
    assert gate.results == {"untried": 1}
    turn.compiled()


async def test_a_constraint_is_not_rejected_if_its_trial_does_not_start(tmp_path: Path) -> None:
    """The server of trials ends with the engine, and then answers nothing."""
    async with gate_before(Trials(begin=False), tmp_path) as gate:
        turn = await gate.admit(Asked(regex="x+"), "a")
    assert turn is not None
    assert gate.results == {"untried": 1}
    turn.compiled()


ORDINARY_MS, COSTLY_MS = 0.2, 4.0
ORDINARY = TrialVerdict(True, 0.01, "xgrammar", token_ms=ORDINARY_MS, most_token_ms=5.0)
COSTLY = TrialVerdict(True, 0.01, "xgrammar", token_ms=COSTLY_MS, most_token_ms=5.0)


async def all_admitted(gate: GrammarGate, asked: Asked, tenant: str, count: int) -> list[Any]:
    """Return the requests of a tenant; those that do not wait are done."""
    asking = [asyncio.ensure_future(gate.admit(asked, tenant)) for _ in range(count)]
    await asyncio.sleep(0.05)
    return asking


def admitted(asking: list[Any]) -> int:
    return sum(one.done() for one in asking)


@pytest.fixture
async def masks(tmp_path: Path) -> AsyncIterator[GrammarGate]:
    """A gate that has tried `costly` and `ordinary`."""
    async with gate_before(
        Trials(verdicts={"costly": COSTLY, "ordinary": ORDINARY}), tmp_path
    ) as gate:
        assert await gate.admit(Asked(regex="ordinary"), "a") is None
        one = await gate.admit(Asked(regex="costly"), "a")
        one.leave()
        yield gate


async def test_the_masks_of_all_requests_together_have_a_bound(masks: GrammarGate) -> None:
    asking = [
        await all_admitted(masks, Asked(regex="costly"), tenant, 10) for tenant in ("a", "b", "c")
    ]
    running = sum(admitted(one) for one in asking)
    assert COSTLY_MS * running <= REQUEST_MS < COSTLY_MS * (running + 1)
    assert masks.longest_wait_s > 0  # of the third tenant


async def test_a_tenant_with_costly_masks_leaves_time_for_another(masks: GrammarGate) -> None:
    first = await all_admitted(masks, Asked(regex="costly"), "a", 10)
    assert COSTLY_MS * admitted(first) == REQUEST_MS / 2
    other = await all_admitted(masks, Asked(regex="costly"), "b", 1)
    assert admitted(other) == 1
    assert masks.longest_wait_s == 0  # a tenant waits for itself only


async def test_an_ordinary_constraint_never_waits_for_masks(masks: GrammarGate) -> None:
    for tenant in ("a", "b", "c"):
        await all_admitted(masks, Asked(regex="costly"), tenant, 10)
    ordinary = await all_admitted(masks, Asked(regex="ordinary"), "a", 100)
    assert [one.result() for one in ordinary] == [None] * 100


async def test_a_request_with_costly_masks_admits_the_next_when_it_ends(
    masks: GrammarGate,
) -> None:
    asking = await all_admitted(masks, Asked(regex="costly"), "a", 10)
    running = admitted(asking)
    for ended in range(10):
        (await asking[ended]).leave()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert admitted(asking) == min(10, running + ended + 1)
    assert await masks.admit(Asked(regex="costly"), "a", 8) is not None  # all of it is free again


async def test_a_client_that_leaves_while_waiting_for_masks_holds_no_share(
    masks: GrammarGate,
) -> None:
    asking = await all_admitted(masks, Asked(regex="costly"), "a", 10)
    for one in asking[admitted(asking) :]:
        one.cancel()
    for one in asking[: admitted(asking)]:
        if not one.cancelled():
            (await one).leave()
    assert await masks.admit(Asked(regex="costly"), "b", 8) is not None


async def test_a_constraint_that_waits_for_masks_delays_no_compile(tmp_path: Path) -> None:
    slow = TrialVerdict(True, 2.0, "xgrammar", 1024, token_ms=COSTLY_MS, most_token_ms=5.0)
    trials = Trials(verdicts={"costly": COSTLY, "long": slow, "longer": LONG})
    async with gate_before(trials, tmp_path) as gate:
        running = [await gate.admit(Asked(regex="costly"), "a") for _ in range(4)]
        waiting = asyncio.ensure_future(gate.admit(Asked(regex="long"), "a"))
        await settle(trials, 3)
        other = await gate.admit(Asked(regex="longer"), "a")  # the turn at compiles is free
        other.compiled()
        assert not waiting.done()
        running[0].leave()
        admission = await waiting
        assert admission.turn is not None
        assert gate.results["known"] == 3
