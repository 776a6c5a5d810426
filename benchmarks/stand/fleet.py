"""A fleet of a benchmark's own, beside any that runs here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stand.ending import stopped_in_the_end
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
            yield _described(json.loads(up.stdout), Home(Path(folder)))
        finally:
            subprocess.run([*antefix, "down", "--now"], env=env, check=False)


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


def _described(up: dict[str, str], home: Home) -> BenchFleet:
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
