"""A fleet of a benchmark's own, beside any that runs here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from benchmarks.stand.ending import stopped_in_the_end
from benchmarks.stand.small_model import LAYERS, small_model
from cli.local.home import Home
from cli.stream_client import Endpoint
from deployments.wire.engine_pass import EnginePasses

KNOWN_TRIES, KNOWN_AGAIN_S = 120, 0.5


@dataclass(frozen=True)
class BenchFleet:
    """`engine` is the first replica's own server: what the gateway is compared with. `passes` open
    every replica's. `home` is where the fleet keeps its keys."""

    gateway: Endpoint
    engine: Endpoint
    model: str
    metrics_url: str
    passes: EnginePasses
    home: Path

    def metrics(self) -> Sequence[Sample]:
        """What the node's metrics tell now."""
        with urllib.request.urlopen(self.metrics_url) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return [sample for family in families for sample in family.samples]


@contextmanager
def running(fleet_file: Path, keys: Mapping[str, str] | None = None) -> Iterator[BenchFleet]:
    """Start `fleet_file` on a free port, with a home of its own; stop it in the end.

    `keys`: tenant to API key, of tenants beside `default`, which has to be an operator then.
    """
    with stopped_in_the_end(), tempfile.TemporaryDirectory(prefix="afx-bench-") as folder:
        lines = [f"{tenant}={key}\n" for tenant, key in (keys or {}).items()]
        Home(Path(folder)).keys_file.write_text("".join(["# see antefix keys\n", *lines]))
        env = {**os.environ, "ANTEFIX_HOME": folder}
        antefix = [sys.executable, "-m", "cli.main"]
        try:
            up = subprocess.run(
                [*antefix, "up", str(fleet_file), "--port", "0", "--json"],
                env=env,
                check=False,
                stdout=subprocess.PIPE,
                text=True,
            )
            if up.returncode:
                raise RuntimeError(f"the fleet did not start: {up.stdout}")
            yield _started(json.loads(up.stdout), Home(Path(folder)))
        finally:
            subprocess.run([*antefix, "down", "--now"], env=env, check=False)


@contextmanager
def running_as(
    description: Mapping[str, Any], keys: Mapping[str, str] | None = None
) -> Iterator[BenchFleet]:
    """`running`, from what a fleet file would say."""
    with tempfile.TemporaryDirectory(prefix="afx-bench-") as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_text(yaml.safe_dump(description))
        with running(file, keys) as fleet:
            yield fleet


def with_small_model(fleet_file: Path, layers: int = LAYERS) -> dict[str, Any]:
    """What the file says, but every pool has the small model with so many layers."""
    description: dict[str, Any] = yaml.safe_load(fleet_file.read_text())
    for pool in description["pools"].values():
        pool["model"] = str(small_model(layers))
    return description


def first_engine(status: urllib.request.Request) -> str:
    """The URL of the first replica. A gateway does not know it of an engine that has been too busy
    to publish its load. Raises RuntimeError for one that stays unknown."""
    for _ in range(KNOWN_TRIES):
        with urllib.request.urlopen(status) as answer:
            pools = json.load(answer)["pools"]
        url: str | None = next(iter(pools.values()))["replicas"][0]["url"]
        if url:
            return url
        time.sleep(KNOWN_AGAIN_S)
    raise RuntimeError("the gateway does not know where its first engine is")


def _started(up: dict[str, str], home: Home) -> BenchFleet:
    root = up["base_url"].removesuffix("/v1")
    authorization = {"authorization": f"Bearer {up['api_key']}"}
    request = urllib.request.Request(f"{root}/antefix/status", headers=authorization)
    engine_url = first_engine(request)
    passes = EnginePasses(home.keys().engine_secret)
    return BenchFleet(
        Endpoint("gateway", root, authorization),
        Endpoint("direct", engine_url, passes.headers(engine_url)),
        up["model"],
        up["metrics_url"],
        passes,
        home.folder,
    )
