"""The routers that are compared, and how each is started in front of the same engines.

Each is set as its own documentation has it for vLLM over HTTP, and otherwise keeps its defaults.
One that can receive engines' KV events does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.harness.fleets.launched import Launched
from benchmarks.peers.cases import PeerCase
from benchmarks.peers.engines import BLOCK_TOKENS, ENVIRONMENT, MODEL, POOL, Backends
from benchmarks.peers.environments import environment
from cli.local.ports import LOOPBACK, free_ports

SMG, VLLM_ROUTER, LITELLM = "smg==1.13.0", "vllm-router==0.1.17", "litellm[proxy]==1.106.2"
# Ray and vLLM are those of Antefix: only this package is missing.
RAY_LLM = "pyarrow==26.0.1"
RAY_LLM_KV = f"{RAY_LLM} ai-dynamo-runtime==1.6.1"
OURS, ROUND_ROBIN = "antefix", "round_robin"


@dataclass(frozen=True)
class Place:
    """The place of one gateway among those of its router. `peers`: the ports on which gateways
    reach each other, its port at `number`."""

    folder: Path
    number: int
    port: int
    peers: tuple[int, ...]

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


Command = Callable[[Backends, Place], list[str]]


@dataclass(frozen=True)
class PeerRouter:
    """`requirement`: what pip calls it and its version, empty for Antefix. `command`: its program
    and arguments; `variables` of the environment it is started with. `asked`: what is written to
    it, if it is a program of the benchmark's. `has_engines`: it cannot do without its own, which
    start with it, so it is not like for like. `tells_others`: its gateways share what they
    know."""

    requirement: str = ""
    command: Command | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    asked: Callable[[Backends, Place], dict[str, Any]] | None = None
    has_engines: bool = False
    tells_others: bool = False

    def suits(self, case: PeerCase) -> bool:
        """Its own engines would be restarted with it; alone there is no other to share with."""
        return not case.says if self.has_engines else case.gateways > 1 or not self.tells_others

    def prepare(self) -> None:
        """Before anything is measured: it may take minutes to install."""
        if self.requirement:
            environment(self.requirement, beside_ours=self.has_engines)

    def start(self, backends: Backends, place: Place) -> tuple[Launched, dict[str, str]]:
        """A gateway of it that may not be ready yet, and what headers requests need."""
        log = place.folder / f"gateway-{place.number}.log"
        if self.command is None:
            return _start_ours(backends, place, log)
        program, *arguments = self.command(backends, place)
        programs = environment(self.requirement, beside_ours=self.has_engines)
        asked = self.asked(backends, place) if self.asked else None
        return Launched([str(programs / program), *arguments], log, self.variables, asked), {}


def places(folder: Path, count: int) -> list[Place]:
    ports = free_ports(2 * count)
    peers = tuple(ports[count:])
    return [Place(folder, number, ports[number], peers) for number in range(count)]


def _start_ours(backends: Backends, place: Place, log: Path) -> tuple[Launched, dict[str, str]]:
    fleet: dict[str, Any] = backends.fleet.model_dump(mode="json", exclude_unset=True)
    fleet["gateway"] = {"host": LOOPBACK, "port": place.port}
    asked = {
        "fleet": fleet,
        "api_keys": {backends.api_key: "default"},
        "secret": backends.secret,
        "redis_url": backends.redis_url,
        "engines": len(backends.urls),
    }
    command = [sys.executable, "-m", "benchmarks.harness.fleets.lone_gateway"]
    metrics = {"ANTEFIX_METRICS_FOLDER": str(place.folder / "metrics")}
    return Launched(command, log, metrics, asked), {"authorization": f"Bearer {backends.api_key}"}


def _listening(place: Place) -> list[str]:
    (metrics,) = free_ports(1)
    return [*("--host", LOOPBACK, "--port", str(place.port)), *("--prometheus-port", str(metrics))]


def _smg(backends: Backends, place: Place) -> list[str]:
    command = ["smg", "launch", "--worker-urls", *backends.urls, "--policy", "cache_aware"]
    return [*command, *_listening(place), "--log-level", "warn"]


def _smg_mesh(backends: Backends, place: Place) -> list[str]:
    own = place.peers[place.number]
    others = [f"{LOOPBACK}:{port}" for port in place.peers if port != own]
    return [
        *(*_smg(backends, place), "--enable-mesh", "--mesh-server-name", f"gateway-{place.number}"),
        *("--mesh-host", LOOPBACK, "--mesh-port", str(own), "--mesh-peer-urls", *others),
    ]


def _vllm_router(policy: str) -> Command:
    def command(backends: Backends, place: Place) -> list[str]:
        told = ["vllm-router", "--worker-urls", *backends.urls, "--policy", policy]
        told += [*_listening(place), "--log-level", "warning"]
        if policy == "kv_aware":
            for url, events, replay in zip(
                backends.urls, backends.events, backends.replays, strict=True
            ):
                told += ["--kv-event-source", f"{url}={events}"]
                told += ["--kv-event-replay-source", f"{url}={replay}"]
            told += ["--kv-event-block-size", str(BLOCK_TOKENS)]
            told += ["--kv-event-model", MODEL]
        return told

    return command


def _litellm(backends: Backends, place: Place) -> list[str]:
    engines = [
        {
            "model_name": MODEL,
            "litellm_params": {
                "model": f"hosted_vllm/{MODEL}",
                "api_base": f"{url}/v1",
                "api_key": "none",
            },
        }
        for url in backends.urls
    ]
    file = place.folder / f"litellm-{place.number}.yaml"
    file.write_text(json.dumps({"model_list": engines}))  # YAML, too
    return ["litellm", "--config", str(file), "--host", LOOPBACK, "--port", str(place.port)]


def _ray_llm(
    router: str,
    requirement: str = RAY_LLM,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> PeerRouter:
    def asked(backends: Backends, place: Place) -> dict[str, Any]:
        pool = backends.fleet.pools[POOL]
        return {
            "model": MODEL,
            "model_folder": pool.model,
            "engine_args": pool.engine_args,
            "engines": len(backends.urls),
            "variables": ENVIRONMENT,
            "router": router,
            "host": LOOPBACK,
            "port": place.port,
        }

    def program(backends: Backends, place: Place) -> list[str]:
        return ["python", str(Path(__file__).with_name("ray_llm.py"))]

    return PeerRouter(requirement, program, variables, asked, has_engines=True)


ROUTERS: Mapping[str, PeerRouter] = {
    OURS: PeerRouter(),
    ROUND_ROBIN: PeerRouter(VLLM_ROUTER, _vllm_router("round_robin")),
    "smg": PeerRouter(SMG, _smg),
    "smg_mesh": PeerRouter(SMG, _smg_mesh, tells_others=True),
    "vllm_router": PeerRouter(VLLM_ROUTER, _vllm_router("cache_aware")),
    "vllm_router_kv": PeerRouter(VLLM_ROUTER, _vllm_router("kv_aware")),
    "ray_llm": _ray_llm("default"),
    "ray_llm_prefix": _ray_llm("prefix"),
    "ray_llm_kv": _ray_llm(
        "kv",
        RAY_LLM_KV,
        # what it cannot do without: HAProxy, which sends it bodies and engines requests
        {
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1",
            "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY": "1",
        },
    ),
    "litellm": PeerRouter(
        LITELLM,
        _litellm,
        {
            # it would ask the internet what models cost
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        },
    ),
}
