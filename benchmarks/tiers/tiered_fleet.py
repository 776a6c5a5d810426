"""Replicas and a gateway, with or without tiers, as processes."""

from __future__ import annotations

import contextlib
import json
import secrets
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.fleets import own_redis
from benchmarks.harness.fleets.launched import Launched
from benchmarks.harness.fleets.small_model import small_model
from benchmarks.harness.load.conversation_player import Answer, Style, play
from benchmarks.tiers.ruled_gateway import Rule
from cli.gateway.stream_client import Endpoint
from cli.local.ports import LOOPBACK, free_ports
from deployments.app import ENGINE_ENVIRONMENT
from deployments.fleet.fleet import Fleet
from loadgen.workloads import Conversation
from weights.model.cpu_dtype import dtype_of_this_cpu

# A replica that leaves hands prefixes over before it ends.
MODEL, START_S, LEAVE_S = "small", 600.0, 60.0
ENVIRONMENT = {
    **ENGINE_ENVIRONMENT,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def kv_bytes_per_token(dtype: str | None = None) -> int:
    """Return the bytes of a token in the cache of the small model. `dtype`: that of the engines;
    None: the best one of this CPU."""
    config = json.loads((small_model() / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    values = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head
    return int(values * (4 if (dtype or dtype_of_this_cpu().dtype) == "float32" else 2))


class TieredFleet:
    """A fleet that runs. `failed` counts requests without a whole answer."""

    def __init__(
        self,
        url: str,
        key: str,
        rule_file: Path,
        metrics_url: str,
        launch_replica: Callable[[int], Launched],
    ) -> None:
        self._launch_replica = launch_replica
        self._replicas: list[Launched] = []
        self._metrics_url = metrics_url
        self._endpoint = Endpoint("gateway", url, {"authorization": f"Bearer {key}"})
        self._rule_file = rule_file
        self.follow(None)
        # other runs of this fleet have other prefixes
        self._style = Style(MODEL, "prefix", secrets.token_hex(8))
        self.failed = 0

    def follow(self, rule: Rule) -> None:
        """Let the gateway decide about loads by a rule, or as it ships (None)."""
        self._rule_file.write_text(json.dumps(rule))

    def start_replica(self) -> None:
        """Start one more replica, and wait until it is ready."""
        self._replicas.append(self._launch_replica(len(self._replicas)))

    def stop_oldest(self) -> None:
        """Let the replica that has run longest leave, as Ray Serve does."""
        next(one for one in self._replicas if not one.has_ended).stop(LEAVE_S)

    async def play(
        self, http: aiohttp.ClientSession, conversations: list[Conversation]
    ) -> list[Answer]:
        """Return the answers, in order of conversation and turn, without those that failed."""
        outcomes = await play(http, self._endpoint, self._style, conversations)
        answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
        for outcome in outcomes:
            if isinstance(outcome, str):
                print(f"failed: {outcome}", file=sys.stderr)
        self.failed += len(outcomes) - len(answers)
        return answers

    async def way(self, http: aiohttp.ClientSession, answer: Answer) -> str | None:
        """Return how the replica got the prefix of a request that ended within two minutes. Raises
        aiohttp.ClientError without an explanation."""
        url = f"{self._endpoint.url}/antefix/requests/{answer.request_id}"
        headers = self._endpoint.headers
        async with http.get(url, headers=headers, raise_for_status=True) as explained:
            way: str | None = (await explained.json())["way"]
        return way

    async def taken(self, http: aiohttp.ClientSession, way: str) -> dict[str, float]:
        """Return the requests so far that took this way, and the sums of their predicted and
        measured seconds."""
        async with http.get(self._metrics_url) as answer:
            text = await answer.text()
        found = {"requests": 0.0, "predicted": 0.0, "measured": 0.0}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("way") != way or not sample.name.endswith("_total"):
                    continue
                if sample.name.startswith("antefix_kv_tier_"):
                    found[sample.labels.get("time", "requests")] += sample.value
        return found


def mean_ttft(answers: Sequence[Answer]) -> float:
    """Return seconds."""
    return statistics.fmean(answer.ttft for answer in answers)


def _fleet(
    settings: Mapping[str, Any],
    kv_tiers: Mapping[str, Any] | None,
    dtype: str,
    prefill: Mapping[str, Any] | None,
) -> Fleet:
    metrics_port, port = free_ports(2)
    engine_args = {
        "dtype": dtype,
        "max_model_len": 4096,
        "max_num_seqs": 16,
        "enforce_eager": True,
        "block_size": settings["block_tokens"],
        "num_gpu_blocks_override": settings["cache_blocks"],
    }
    pool: dict[str, Any] = {
        "model": str(small_model()),
        "served_model_name": MODEL,
        "segment_tokens": settings["block_tokens"],
        "engine_args": engine_args,
    }
    if kv_tiers is not None:
        pool["kv_tiers"] = dict(kv_tiers)
    pools = {"engine": pool}
    if prefill is not None:
        pools["prompts"] = {**pool, "served_model_name": "prompts"}
        pools["engine"] = {**pool, "prefill": {"pool": "prompts", **prefill}}
    return Fleet.model_validate(
        {
            "name": "tiers",
            "metrics": {"port": metrics_port},
            "gateway": {"port": port},
            "pools": pools,
        }
    )


@contextlib.contextmanager
def running(
    folder: Path,
    settings: Mapping[str, Any],
    kv_tiers: Mapping[str, Any] | None,
    load_bytes_per_s: float | None = None,
    replicas: int = 1,
    dtype: str | None = None,
    prefill: Mapping[str, Any] | None = None,
) -> Iterator[TieredFleet]:
    """Run a fleet whose processes write to `folder`. Raises RuntimeError if one does not start.

    `dtype`: that of the engines; None: the best one of this CPU. `prefill`: settings of the fleet
    file, with which another pool of as many replicas computes prompts.
    """
    folder.mkdir()
    fleet = _fleet(settings, kv_tiers, dtype or dtype_of_this_cpu().dtype, prefill)
    pools = [name for name in fleet.pools for _ in range(replicas)]
    key = secrets.token_hex(16)
    environment = {**ENVIRONMENT, "ANTEFIX_METRICS_FOLDER": str(folder / "metrics")}
    with own_redis.running(folder) as redis, contextlib.ExitStack() as stack:
        common = {
            "fleet": fleet.model_dump(mode="json", exclude_unset=True),
            "secret": secrets.token_hex(16),
            "redis_url": redis.url,
        }

        def launch(name: str, module: str, **more: Any) -> Launched:
            command, log = [sys.executable, "-m", module], folder / f"{name}.log"
            process = Launched(command, log, environment, {**common, **more})
            stack.callback(process.stop)
            process.said(START_S)
            return process

        def launch_replica(number: int) -> Launched:
            return launch(
                f"replica-{number}",
                "benchmarks.tiers.throttled_replica",
                replica_id=f"r{number}",
                pool=pools[number % len(pools)],
                load_bytes_per_s=load_bytes_per_s,
            )

        metrics = f"http://{LOOPBACK}:{fleet.metrics.port}/metrics"
        rule_file = folder / "rule.json"
        url = f"http://{LOOPBACK}:{fleet.gateway.port}"
        served = TieredFleet(url, key, rule_file, metrics, launch_replica)
        for _ in pools:
            served.start_replica()
        launch(
            "gateway",
            "benchmarks.tiers.ruled_gateway",
            engines=len(pools),
            api_keys={key: "default"},
            rule_file=str(rule_file),
        )
        yield served
