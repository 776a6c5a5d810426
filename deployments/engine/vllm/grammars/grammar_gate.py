"""Admit a constraint to the engine once a trial has compiled and followed it (`grammar_trial.py`).

Small and plain ones are admitted at once. Any other is tried first, at the cost of one more
compile; the verdict is cached, so that it is tried once. A trial needs a turn, which lasts until
the compile in the engine is over: a tenant has one turn at a time, and tenants take turns.

Each constraint starts with a quick trial. One that does not end within it needs a turn of the
second kind. So constraints that compile quickly never wait for those that compile for seconds. If
trials do not work, the constraint is admitted untried, with a turn.

vLLM fills the masks of all requests one after the other, so their times add up. A constraint whose
masks take long also needs a turn of a third kind, which lasts until its request ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

from deployments.engine.vllm.constraints.constraint_fields import field_of
from deployments.engine.vllm.grammars.constraints import Unfit
from deployments.engine.vllm.grammars.grammar_follow import REQUEST_MS, TOKEN_MS
from deployments.engine.vllm.grammars.grammar_trial import MOST_CPU_S, QUICK_CPU_S, TrialVerdict
from deployments.engine.vllm.grammars.grammar_turns import GrammarTurns
from deployments.engine.vllm.grammars.mask_watch import SLOW_S
from deployments.engine.vllm.grammars.trial_client import TrialClient
from deployments.wire.plain_constraints import KINDS, is_plain

logger = logging.getLogger("ray.serve")

# Shorter compiles need no turn.
SLOW_CPU_S = 0.05
# The verdict on a constraint whose trial failed.
UNTRIED = TrialVerdict(fits=True, cpu_s=float(MOST_CPU_S), cached_bytes=1024 * 1024)
# A turn ends at the latest after this multiple of the trial's time, plus a second.
_COMPILE_TIMES = 2.0
KNOWN = 4096
# A quick trial ends within QUICK_CPU_S, so concurrent trials of some tenants do not count as a
# stuck queue.
STUCK_S = 5.0
# A constraint whose masks take at most this share of what is allowed needs no turn for them. Nearly
# all ordinary schemas are below it: they take 0.03 to 0.15 ms per token.
QUICK_MASK_SHARE = 0.05
# Less than the cache of an engine (`plugin.GRAMMAR_CACHE_MB`).
CACHED_BYTES = 32 * 1024 * 1024


class Turn:
    """A compile in the engine. It ends with `compiled`, or `most_s` after its start: a compile
    without a waiting request continues."""

    def __init__(self, most_s: float, ended: Callable[[], None], done: Callable[[], None]) -> None:
        self._ended, self._done = ended, done
        self._timer = asyncio.get_running_loop().call_later(most_s, self._end)
        self._is_over = self._is_compiled = False

    def compiled(self) -> None:
        """Record the request's first token. Repeated calls have no effect."""
        if not self._is_compiled:
            self._is_compiled = True
            self._timer.cancel()
            self._done()
            self._end()

    def give_back(self) -> None:
        """End the turn without a compile."""
        self._is_compiled = True
        self._timer.cancel()
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended()


@dataclass(frozen=True)
class AdmittedConstraint:
    """A constraint in the engine. `turn`: it compiles slowly there; `leave` ends its masks' turn.
    Call it once, when the request ends."""

    turn: Turn | None
    leave: Callable[[], None] = lambda: None

    def compiled(self) -> None:
        """Record the request's first token. Repeated calls have no effect."""
        if self.turn is not None:
            self.turn.compiled()


class GrammarGate:
    """The gate of one engine, whose constraints are tried with `trials`.

    `at_once`: the number of quick compiles, and of long ones; None: half the number of cores.
    `backend`: the engine's configured one; "": the first constraint decides. `masks_per_step`: of
    each sequence, one more than the drafts.
    """

    def __init__(
        self,
        trials: TrialClient,
        at_once: int | None = None,
        *,
        backend: str = "",
        masks_per_step: int = 1,
    ) -> None:
        cores = os.cpu_count() or 1
        self._trials = trials
        # quick ones end within QUICK_CPU_S
        at_once = at_once or (cores + 1) // 2
        self._quick, self._long = GrammarTurns(at_once), GrammarTurns(at_once)
        # a tenant leaves half of the time to others
        self._masks = GrammarTurns(REQUEST_MS, of_tenant=REQUEST_MS / 2)
        self._known: OrderedDict[bytes, TrialVerdict] = OrderedDict()
        self._cached = _Cached()
        # vLLM compiles all constraints with the backend of the first one
        self._backend = backend
        self._masks_per_step = masks_per_step
        # by label of `antefix_grammars`
        self.results: Counter[str] = Counter()

    @property
    def longest_wait_s(self) -> float:
        """How long a constraint has waited for those of other tenants; 0: none does."""
        return max(one.longest_wait_s for one in (self._quick, self._long, self._masks))

    @property
    def stuck_s(self) -> float:
        """How long a constraint has waited for its quick trial; 0 up to STUCK_S.

        Gateways then queue requests whose constraint may need a trial.
        """
        waits_s = self._quick.longest_wait_s
        return waits_s if waits_s > STUCK_S else 0.0

    async def admit(
        self, structured: Any, tenant: str, sequences: int = 1
    ) -> AdmittedConstraint | None:
        """Return once the constraint of this tenant's request may enter the engine; None: it
        compiles quickly there, and so are its masks filled.

        `sequences` of the request each follow it. Raises Unfit.
        """
        fields = _fields_of(structured)
        try:
            name = _name_of(fields)
        except (RecursionError, ValueError):
            return None  # vLLM refuses it
        verdict, turn = self._known.get(name), None
        if verdict is None and all(is_plain(kind, fields.get(kind)) for kind in KINDS):
            self._backend = self._backend or "xgrammar"
            self.results["plain"] += 1
            return None
        if verdict is None or (self._is_slow(name, verdict) and _has_quick_masks(verdict)):
            turn = await self._in_turn(name, fields, tenant)
            verdict = self._known.get(name, UNTRIED)
        else:
            self._known.move_to_end(name)
            self._refuse_unfit(verdict, fields)
            self.results["known"] += 1
        if turn is not None and not _has_quick_masks(verdict):
            turn.give_back()  # its masks' turn comes first, and may be long in coming
        ms = self._refuse_many(verdict, fields, sequences)
        if _has_quick_masks(verdict):
            return AdmittedConstraint(turn) if turn is not None else None
        await self._masks.begin(tenant, ms)
        leave = partial(self._masks.end, tenant, ms)
        try:
            return AdmittedConstraint(await self._compile_turn(name, verdict, tenant), leave)
        except BaseException:
            leave()
            raise

    def stopped(self, structured: Any, mask_ms: float) -> None:
        """Record that the engine ended an answer because its constraint was slow to follow, and
        took `mask_ms` for a mask: the request that takes a whole slow step is refused from now on,
        and others have turns accordingly."""
        self.results["stopped"] += 1
        fits = mask_ms < 1000 * SLOW_S
        verdict = TrialVerdict(fits, token_ms=mask_ms, most_token_ms=TOKEN_MS)
        self._know(_name_of(_fields_of(structured)), verdict)

    async def _in_turn(self, name: bytes, fields: Mapping[str, Any], tenant: str) -> Turn | None:
        turns = self._turns_of(name, self._known.get(name))
        verdict, took_s, end = await self._tried(turns, name, fields, tenant)
        if verdict is UNTRIED and turns is self._quick:
            end()
            await self._long.begin(tenant)
            end = partial(self._long.end, tenant)
        elif turns is self._quick and (
            verdict is None or self._turns_of(name, verdict) is self._long
        ):
            end()
            verdict, took_s, end = await self._tried(self._long, name, fields, tenant)
        assert verdict is not None
        self._backend = self._backend or verdict.backend
        turn = self._begun(name, verdict, took_s, end)
        self._refuse_unfit(verdict, fields)
        return turn

    async def _compile_turn(self, name: bytes, verdict: TrialVerdict, tenant: str) -> Turn | None:
        """Return a turn for the compile of a known constraint; None: it needs none."""
        if not self._is_slow(name, verdict):
            return None
        turns = self._turns_of(name, verdict)
        await turns.begin(tenant)
        return self._begun(name, verdict, verdict.cpu_s, partial(turns.end, tenant))

    def _begun(
        self, name: bytes, verdict: TrialVerdict, took_s: float, end: Callable[[], None]
    ) -> Turn | None:
        """Return the turn at a compile, which `end` ends; None: it has ended, because the engine
        compiles the constraint quickly."""
        if self._is_slow(name, verdict):
            done = partial(self._cached.add, name, verdict.cached_bytes)
            return Turn(_COMPILE_TIMES * took_s + 1.0, end, done)
        end()
        return None

    async def _tried(
        self, turns: GrammarTurns, name: bytes, fields: Mapping[str, Any], tenant: str
    ) -> tuple[TrialVerdict | None, float, Callable[[], None]]:
        """Return the result of `_try`, and a function that ends the turn. The turn ends with the
        trial if its request is gone."""
        await turns.begin(tenant)
        end = partial(turns.end, tenant)
        trying = asyncio.ensure_future(self._try(name, fields, turns is self._quick))
        try:
            return (*await asyncio.shield(trying), end)
        except asyncio.CancelledError:
            trying.add_done_callback(lambda _: end())
            raise

    def _is_slow(self, name: bytes, verdict: TrialVerdict) -> bool:
        """Return whether the engine needs long to compile it."""
        return verdict.fits and verdict.cpu_s >= SLOW_CPU_S and name not in self._cached

    def _turns_of(self, name: bytes, verdict: TrialVerdict | None) -> GrammarTurns:
        """Return the turns for its compile in the engine; None: those for its first trial."""
        is_long = (
            verdict is not None and verdict.cpu_s >= QUICK_CPU_S and self._is_slow(name, verdict)
        )
        return self._long if is_long else self._quick

    def _refuse_unfit(self, verdict: TrialVerdict, fields: Mapping[str, Any]) -> None:
        if verdict.fits:
            return
        self.results["rejected"] += 1
        kind = _kind_of(fields)
        parameter = field_of(kind, fields.get(kind))
        raise Unfit(f"{verdict.refusal(_WORDS[kind])}{_REMEDY}", parameter=parameter)

    def _refuse_many(
        self, verdict: TrialVerdict, fields: Mapping[str, Any], sequences: int
    ) -> float:
        """Return the time of all sequences per token. Raise Unfit if it is too long."""
        ms = sequences * self._masks_per_step * verdict.token_ms
        most = max(REQUEST_MS, verdict.most_token_ms)
        if ms <= most:
            return ms
        self.results["rejected"] += 1
        kind = _kind_of(fields)
        raise Unfit(
            f"The engine takes {ms:.1f} ms of CPU time per token to follow {_WORDS[kind]} in"
            f" {sequences} sequences, but at most {most:.0f} ms are allowed. Lower 'n', or send a"
            " simpler constraint.",
            parameter="n",
        )

    async def _try(
        self, name: bytes, fields: Mapping[str, Any], quick: bool
    ) -> tuple[TrialVerdict | None, float]:
        """Return the verdict, None: it needs a longer trial; and its seconds. Never raises."""
        if (known := self._known.get(name)) is not None:
            self.results["known"] += 1
            return known, known.cpu_s
        asked = {**fields, "backend": self._backend}
        began = time.monotonic()
        try:
            verdict = await (self._trials.quick(asked) if quick else self._trials.long(asked))
        except Exception as error:
            logger.warning("failed to try a grammar; passing it to the engine untried: %r", error)
            self.results["untried"] += 1
            return UNTRIED, UNTRIED.cpu_s
        if verdict is None:
            return None, 0.0
        self._know(name, verdict)
        if verdict.fits:
            self.results["fits"] += 1
        return verdict, time.monotonic() - began

    def _know(self, name: bytes, verdict: TrialVerdict) -> None:
        self._known[name] = verdict
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)


class _Cached:
    """The last long constraints that the engine has compiled and cached."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[bytes, int] = OrderedDict()

    def __contains__(self, name: bytes) -> bool:
        if name not in self._bytes:
            return False
        self._bytes.move_to_end(name)
        return True

    def add(self, name: bytes, size: int) -> None:
        if size:
            self._bytes[name] = size
            self._bytes.move_to_end(name)
        while sum(self._bytes.values()) > CACHED_BYTES:
            self._bytes.popitem(last=False)


_WORDS = {
    "choice": "the choices",
    "regex": "the regular expression",
    "grammar": "the grammar",
    "json": "the schema",
    "structural_tag": "the structural tag",
}
_REMEDY = (
    " Simplify it: use fewer different 'maxLength', patterns, alternatives and repetitions, and"
    " repeat nothing that can match the same text in several ways."
)


def _has_quick_masks(verdict: TrialVerdict) -> bool:
    return verdict.token_ms <= QUICK_MASK_SHARE * verdict.most_token_ms


def _kind_of(fields: Mapping[str, Any]) -> str:
    return next((kind for kind in KINDS if kind in fields), "json")


def _fields_of(structured: Any) -> dict[str, Any]:
    """Return the set fields of vLLM's StructuredOutputsParams."""
    return {
        name: value
        for name, value in vars(structured).items()
        if value is not None and not name.startswith("_")
    }


def _name_of(fields: Mapping[str, Any]) -> bytes:
    text = json.dumps(fields, sort_keys=True, ensure_ascii=True)
    return blake2b(text.encode(), digest_size=16).digest()
