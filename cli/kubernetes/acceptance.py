"""Tests of one pool of a Kubernetes release for `antefix k8s accept`.

`k8s.release.acceptance` evaluates the results. The tests leave nothing in the release: killed
engines and deleted pods are replaced.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from statistics import median
from typing import Any

from cli.common.gateway_client import FIRST_QUESTION, GatewayClient, GatewayError, Streamed
from cli.gateway.verify import GREEDY, HEADERS, RULES, explained, new_system_prompt
from common.errors import Problem
from deployments.fleet.devices import devices_of, is_on_cpus
from deployments.fleet.model_lookup import Unknown, draft_model, engine_of, look_up, pool_model
from deployments.fleet.pool import Pool
from k8s.client.cluster import Cluster
from k8s.client.kubectl import Kubectl
from k8s.needs.gpu_kinds import gpu_of
from k8s.release import acceptance, in_engine_pod
from k8s.release.acceptance import AcceptanceCheck, AcceptedAnswer, DrainedEngine, KilledEngine
from weights.kernels.finding import Device
from weights.plan.engine_plan import EnginePlan, engine_plan
from weights.plan.roofline import OfferedLoad, speed_of

CONTAINER = "ray-engine"
ANOTHER_QUESTION = "And of Italy?"
# Timed one after another, after a first request that does not count.
TIMED_REQUESTS = 3
PROMPT_TOKENS, ANSWER_TOKENS = 2000, 64
# Tokens of one rule of the prompt, in any usual tokenizer.
RULE_TOKENS = 12
PREFIX_TRIES = 5
# Duration of the answer whose engine is killed: several times that of a kubectl command.
CUT_ANSWER_S = 10.0
LEAST_CUT_TOKENS, KILL_AFTER_EVENTS = 96, 8
CLIENTS, SHORT_ANSWER, LONG_ANSWER, BETWEEN_ANSWERS_S = 2, 16, 256, 0.2
ANSWER_S, EXPLAINED_WITHIN_S, PERIOD_S = 300.0, 30.0, 1.0
# Used if neither the fleet nor the model's config.json has it.
USUAL_CONTEXT = 4096


@dataclass(frozen=True)
class AcceptedRelease:
    """Access to a release.

    `recover_s`: the time that a replacement engine may take. `show` gets a line for each check.
    """

    client: GatewayClient
    kubectl: Kubectl
    cluster: Cluster
    namespace: str
    recover_s: float
    show: Callable[[str], None]


@dataclass(frozen=True)
class LongAnswer:
    """An answer of `tokens` tokens to the question under `system`, without disturbance."""

    system: str
    tokens: int
    answer: AcceptedAnswer


@dataclass
class PoolAcceptance:
    """The tests of pool `name`. `run` adds to `checks`. `evidence` is the report of an engine's
    pod."""

    release: AcceptedRelease
    name: str
    pool: Pool
    evidence: Mapping[str, Any] = field(default_factory=dict)
    checks: list[AcceptanceCheck] = field(default_factory=list)

    def run(self, losses: bool) -> None:
        """Run every check; `losses`: kill and drain engines. An error becomes a failed check."""
        try:
            if not (replicas := self._replicas()):
                raise Problem("no engine of the pool takes traffic", "see antefix k8s status")
            plan = self._engine(replicas[0])
            answers = self._speed(plan)
            self._prefix()
            asked = self._long_answer(answers)
            reports = [one["speculation"] for one in self._replicas()]
            speculates = bool(engine_of(self.pool).speculation) or any(reports)
            self._add(acceptance.speculation(speculates, reports))
            if losses:
                self._lose_engines(asked)
            else:
                for check in ("resume", "engine killed", "drain"):
                    self._add(acceptance.left_out(check, "--non-disruptive was given"))
        except Problem as error:
            words = f"{error.message}; {error.remedy}"
            self._add(AcceptanceCheck("complete run", "failed", reason=words))

    def _add(self, check: AcceptanceCheck) -> None:
        self.checks.append(check)
        self.release.show(check.line)

    def _replicas(self) -> list[Mapping[str, Any]]:
        """Return the replicas that take traffic."""
        pool = self.release.client.status()["pools"][self.name]
        return [one for one in pool["replicas"] if one["role"] == "active"]

    def _pod_of(self, replica: Mapping[str, Any]) -> str:
        for pod in self.release.cluster.list("pods", namespace=self.release.namespace):
            if pod.get("status", {}).get("podIP") == replica["node_ip"]:
                return str(pod["metadata"]["name"])
        raise Problem(
            f"no pod has the address of replica {replica['replica']}",
            "see antefix k8s status, and try again",
        )

    def _in_pod(self, pod: str, what: str) -> str:
        program = Path(in_engine_pod.__file__).read_text()
        return self.release.kubectl.python(pod, CONTAINER, program, what, self.name)

    def _engine(self, replica: Mapping[str, Any]) -> EnginePlan:
        """Check what an engine reports about itself against its plan."""
        pool = self.pool
        self.evidence = json.loads(self._in_pod(self._pod_of(replica), "look"))
        plan = plan_of(pool, replica["dtype"], self.evidence["gpus"])
        log, on_cpus = self.evidence["log"], is_on_cpus(pool)
        self._add(acceptance.attention(log, plan.attention, on_cpus))
        self._add(acceptance.quantization(log, plan.is_quantized))
        gpus = pool.tensor_parallel * pool.pipeline_parallel
        disables_custom = pool.engine_args.get("disable_custom_all_reduce") is True
        self._add(acceptance.nccl(log, gpus, on_cpus, disables_custom=disables_custom))
        self._add(acceptance.kv_cache(log, plan.kv_tokens, plan.no_kv_tokens))
        return plan

    @property
    def _context(self) -> int:
        """Return the length of the longest request, in tokens."""
        engine, model = engine_of(self.pool), look_up(pool_model(self.pool))
        own = None if isinstance(model, Unknown) else engine.context(model.shape)
        return own or engine.max_model_len or USUAL_CONTEXT

    def _speed(self, plan: EnginePlan) -> list[AcceptedAnswer]:
        rules = min(PROMPT_TOKENS, self._context // 3) // RULE_TOKENS
        asked = [self._ask(new_system_prompt(rules)) for _ in range(TIMED_REQUESTS + 1)][1:]
        prompt = round(median(answer.prompt_tokens for answer in asked))
        speed = plan.roofline and speed_of(plan.roofline, OfferedLoad(1, prompt, ANSWER_TOKENS))
        tpots = [answer.tpot_s for answer in asked if answer.tpot_s is not None]
        planned = (speed.ttft_s, speed.tpot_s) if speed else (None, None)
        times = ("TTFT", [answer.ttft_s for answer in asked]), ("TPOT", tpots)
        for (name, seconds), planned_s in zip(times, planned, strict=True):
            self._add(acceptance.duration(name, seconds, planned_s, plan.no_roofline))
        return asked

    def _prefix(self) -> None:
        system = new_system_prompt(min(PROMPT_TOKENS, self._context // 3) // RULE_TOKENS)
        first = self._ask(system)
        for _ in range(PREFIX_TRIES):
            again = self._ask(system, ANOTHER_QUESTION)
            check = acceptance.prefix_hit(first, again)
            if check.verdict == "passed":
                break
            time.sleep(PERIOD_S)
        self._add(check)

    def _long_answer(self, answers: Sequence[AcceptedAnswer]) -> LongAnswer:
        tpots = [answer.tpot_s for answer in answers if answer.tpot_s]
        wanted = int(CUT_ANSWER_S / median(tpots)) if tpots else LEAST_CUT_TOKENS
        tokens = min(max(LEAST_CUT_TOKENS, wanted), self._context // 2)
        system = new_system_prompt(min(RULES, self._context // 4 // RULE_TOKENS))
        return LongAnswer(system, tokens, self._ask(system, tokens=tokens))

    def _lose_engines(self, asked: LongAnswer) -> None:
        replicas = self._replicas()
        killed = self._kill_one(replicas, asked)
        is_alone = len(replicas) < 2
        if is_alone:
            self._add(acceptance.left_out("resume", "the pool has one engine"))
        else:
            self._add(acceptance.resume(killed, asked.tokens, self.pool.resume))
        startup_s = max(one["startup_s"] or 0.0 for one in replicas)
        self._add(acceptance.engine_back(killed, self.release.recover_s, startup_s))
        if is_alone or killed.back_s is None:
            why = "the pool has one engine" if is_alone else "an engine is missing"
            self._add(acceptance.left_out("drain", why))
        else:
            self._add(acceptance.drained(self._drain_one()))

    def _kill_one(self, replicas: Sequence[Mapping[str, Any]], asked: LongAnswer) -> KilledEngine:
        """Send the request again, and kill the engine that answers. A lone engine is killed while
        idle."""
        pods = {one["replica"]: self._pod_of(one) for one in replicas}
        events, killed = 0, dict[str, float]()

        def kill(replica: str) -> None:
            self._in_pod(pods[replica], "kill")
            killed[replica] = time.monotonic()

        def kill_in_the_middle(replica: str) -> None:
            nonlocal events
            events += 1
            if events == KILL_AFTER_EVENTS and replica in pods:
                kill(replica)

        cut, error = None, ""
        if len(pods) == 1:  # otherwise an answer would be lost, and its tenant would be suspected
            kill(*pods)
        else:
            try:
                cut = self._stream(asked.system, FIRST_QUESTION, asked.tokens, kill_in_the_middle)
            except GatewayError as failed:
                error = failed.message
        if not killed:
            raise Problem("the answer ended before its engine was killed", "try again")
        since = min(killed.values())
        answer = self._explained(cut) if cut else None
        return KilledEngine(asked.answer, answer, error, self._back_s(since, killed, len(replicas)))

    def _drain_one(self) -> DrainedEngine:
        replicas, where = self._replicas(), self.release.namespace
        pod = self._pod_of(replicas[0])
        with self._load() as ended:
            _more(ended)
            since, limit = time.monotonic(), self.release.recover_s
            self.release.kubectl.delete(pod)
            gone = _until(
                lambda: self.release.cluster.get("pods", pod, namespace=where) is None, since, limit
            )
            back = self._back_s(since, {replicas[0]["replica"]: since}, len(replicas))
            _more(ended)
        lost = [words for words in ended if words and words != _REJECTED]
        return DrainedEngine(len(ended), ended.count(_REJECTED), lost, gone, back)

    def _back_s(self, since: float, lost: Mapping[str, float], wanted: int) -> float | None:
        def is_back() -> bool:
            try:
                pool = self.release.client.status()["pools"][self.name]
            except GatewayError:
                return False
            there = {one["replica"] for one in pool["replicas"] if one["role"] == "active"}
            # an autoscaler may want fewer in the meantime
            return len(there - lost.keys()) >= min(wanted, int(pool["target_replicas"]))

        return _until(is_back, since, self.release.recover_s)

    @contextmanager
    def _load(self) -> Iterator[list[str]]:
        """Run a few clients until the end. Yield the errors of ended requests; an empty text is a
        success."""
        ended, stop = list[str](), threading.Event()

        def ask_on() -> None:
            system, tokens = new_system_prompt(1), SHORT_ANSWER
            while not stop.wait(BETWEEN_ANSWERS_S):
                tokens = min(LONG_ANSWER + SHORT_ANSWER - tokens, self._context // 2)
                try:
                    made = self._stream(system, FIRST_QUESTION, tokens).usage["completion_tokens"]
                    ended.append("" if made == tokens else f"{made} of {tokens} tokens arrived")
                except GatewayError as error:
                    is_rejected = error.status == HTTPStatus.TOO_MANY_REQUESTS
                    ended.append(_REJECTED if is_rejected else error.message)

        with ThreadPoolExecutor(CLIENTS) as clients:
            asking = [clients.submit(ask_on) for _ in range(CLIENTS)]
            try:
                yield ended
            finally:
                stop.set()
        for client in asking:
            client.result()

    def _ask(
        self, system: str, question: str = FIRST_QUESTION, tokens: int = ANSWER_TOKENS
    ) -> AcceptedAnswer:
        return self._explained(self._stream(system, question, tokens))

    def _stream(
        self,
        system: str,
        question: str,
        tokens: int,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> Streamed:
        """Stream exactly this many tokens, unless an error occurs."""
        body = {
            "model": self.pool.served_model_name,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
            **GREEDY,
        }
        return self.release.client.stream(body, HEADERS, ANSWER_S, on_event)

    def _explained(self, streamed: Streamed) -> AcceptedAnswer:
        told = explained(self.release.client, streamed.request_id, EXPLAINED_WITHIN_S)
        details = streamed.usage.get("prompt_tokens_details") or {}
        return AcceptedAnswer(
            request_id=streamed.request_id,
            text=streamed.text,
            prompt_tokens=told["prompt_tokens"]["confirmed"] or 0,
            cached_tokens=told["cached_tokens"]["confirmed"] or 0,
            cached_in_usage=details.get("cached_tokens"),
            output_tokens=streamed.usage.get("completion_tokens", 0),
            ttft_s=told["ttft_s"]["engine"],
            tpot_s=told["tpot_s"],
            resumed=told.get("resumed"),
        )


# The result of a request that was answered with 429.
_REJECTED = "rejected"


def plan_of(pool: Pool, dtype: str | None, gpus: Sequence[Mapping[str, str]]) -> EnginePlan:
    """Return the plan of an engine. `dtype` is its type of computation, `gpus` the GPUs that
    nvidia-smi lists in its pod."""
    engine = engine_of(pool)
    engine = replace(engine, args={**engine.args, "dtype": dtype or engine.dtype})
    model = look_up(pool_model(pool), engine)
    if isinstance(model, Unknown):
        return EnginePlan(no_kv_tokens=model.why, no_roofline=model.why)
    named = draft_model(pool)
    draft = look_up(named) if named is not None else None
    return engine_plan(
        model, engine, _device(pool, gpus), None if isinstance(draft, Unknown) else draft
    )


def _device(pool: Pool, gpus: Sequence[Mapping[str, str]]) -> Device | None:
    if is_on_cpus(pool):
        return Device("CPU", None)
    gpu = gpus[0] if gpus else {"name": "", "memory_mib": ""}
    labels = {"nvidia.com/gpu.product": gpu["name"], "nvidia.com/gpu.memory": gpu["memory_mib"]}
    offered = gpu_of(labels)
    devices = devices_of(pool, (offered,)) if offered else []
    return devices[0] if devices else None


def _more(ended: Sequence[str]) -> None:
    """Wait until as many more requests have ended as there are clients."""
    wanted = len(ended) + CLIENTS
    _until(lambda: len(ended) >= wanted, time.monotonic(), ANSWER_S)


def _until(truth: Callable[[], bool], since: float, within_s: float) -> float | None:
    """Return the seconds from `since` until `truth` returns true; None: not in time."""
    while (now := time.monotonic()) - since < within_s:
        if truth():
            return now - since
        time.sleep(PERIOD_S)
    return None
