"""A separate fleet for a benchmark, next to any that runs here."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from benchmarks.harness.fleets.small_model import LAYERS, small_model
from benchmarks.harness.results.ending import stopped_in_the_end
from cli.gateway.stream_client import Endpoint
from cli.local.home import Home
from common.errors import Problem
from deployments.wire.engine_pass import EnginePasses

KNOWN_TRIES, KNOWN_AGAIN_S = 120, 0.5
STATUS_WITHIN_S = 10.0


@dataclass(frozen=True)
class BenchFleet:
    """`engine`: the first replica's own server. `passes` open those of all replicas. `home`: where
    the fleet keeps its keys."""

    gateway: Endpoint
    engine: Endpoint
    model: str
    metrics_url: str
    passes: EnginePasses
    home: Path

    def metrics(self) -> Sequence[Sample]:
        """All samples of the node's metrics endpoint."""
        with urllib.request.urlopen(self.metrics_url) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return [sample for family in families for sample in family.samples]

    def pools(self) -> dict[str, Any]:
        """The status of each pool. Raises OSError and ValueError."""
        return pools_of(self.gateway)


@contextmanager
def running(fleet_file: Path, keys: Mapping[str, str] | None = None) -> Iterator[BenchFleet]:
    """Start `fleet_file` on a free port, with a separate home, and stop it at the end.

    `keys`: tenant to API key. With others than `default`, that has to be an operator.
    """
    with stopped_in_the_end(), tempfile.TemporaryDirectory(prefix="afx-bench-") as folder:
        lines = [f"{tenant}={key}\n" for tenant, key in (keys or {}).items()]
        Home(Path(folder)).keys_file.write_text("".join(["# see antefix key\n", *lines]))
        env = {**os.environ, "ANTEFIX_HOME": folder}
        antefix = [sys.executable, "-m", "cli.main"]
        try:
            up = subprocess.run(
                [*antefix, "up", str(fleet_file), "--port", "0", "-o", "json"],
                env=env,
                check=False,
                stdout=subprocess.PIPE,
                text=True,
            )
            if up.returncode:
                subprocess.run([*antefix, "logs", "--tail", "50"], env=env, check=False)
                raise RuntimeError(f"the fleet did not start: {up.stdout}")
            yield _started(json.loads(up.stdout), Home(Path(folder)))
        finally:
            subprocess.run([*antefix, "down", "--now"], env=env, check=False)


@contextmanager
def running_as(
    description: Mapping[str, Any], keys: Mapping[str, str] | None = None
) -> Iterator[BenchFleet]:
    """`running`, from the content of a fleet file."""
    with tempfile.TemporaryDirectory(prefix="afx-bench-") as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_text(yaml.safe_dump(description))
        with running(file, keys) as fleet:
            yield fleet


def with_small_model(fleet_file: Path, layers: int = LAYERS) -> dict[str, Any]:
    """The content of the file, with the small model of `layers` layers in every pool."""
    description: dict[str, Any] = yaml.safe_load(fleet_file.read_text())
    for pool in description["pools"].values():
        pool["model"] = str(small_model(layers))
    return description


def pools_of(gateway: Endpoint) -> dict[str, Any]:
    """The status of each pool. Raises OSError and ValueError."""
    request = urllib.request.Request(f"{gateway.url}/antefix/status", headers=gateway.headers)
    try:
        with urllib.request.urlopen(request, timeout=STATUS_WITHIN_S) as answer:
            pools: dict[str, Any] = json.load(answer)["pools"]
            return pools
    except http.client.HTTPException as error:
        raise ConnectionError(f"the gateway's answer is incomplete: {error!r}") from error


def engine_urls(
    pools: Callable[[], Mapping[str, Any]], count: int = 1, again_s: float = KNOWN_AGAIN_S
) -> list[str]:
    """The URLs of the first `count` replicas of the first pool, asked for again until they are
    known: a busy engine publishes its load late. Raises Problem."""
    known = 0
    for _ in range(KNOWN_TRIES):
        replicas = next(iter(pools().values()))["replicas"]
        urls = [replica["url"] for replica in replicas[:count] if replica["url"]]
        if (known := len(urls)) == count:
            return urls
        time.sleep(again_s)
    raise Problem(
        f"the gateway knows the addresses of {known} of {count} engines",
        "end other processes that use these cores, and run it again",
    )


def _started(up: dict[str, str], home: Home) -> BenchFleet:
    root = up["base_url"].removesuffix("/v1")
    gateway = Endpoint("gateway", root, {"authorization": f"Bearer {up['api_key']}"})
    [engine_url] = engine_urls(partial(pools_of, gateway))
    passes = EnginePasses(home.keys().engine_secret)
    return BenchFleet(
        gateway,
        Endpoint("direct", engine_url, passes.headers(engine_url)),
        up["model"],
        up["metrics_url"],
        passes,
        home.folder,
    )
