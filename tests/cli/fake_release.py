"""A release in Kubernetes without one: its API, a gateway's HTTP, and a kubectl that asks both.

Engines that are killed or drained are replaced at once. A test changes what they report.
"""

from __future__ import annotations

import base64
import json
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.helm.helm import NAMESPACE
from tests.k8s.api import Api
from tests.k8s.objects import named
from tests.k8s.release_objects import ACTIVE, LABELS, ray_pod, release

POOL = "llama"
KEY = "sk-of-the-operator"
PROMPT_TOKENS = 1000
# The second answer of LONG tokens waits after CUT_AT of them until its engine is killed.
LONG, CUT_AT = 1000, 20
KUBECTL = """#!{python}
import json, sys, time, urllib.parse, urllib.request
words = sys.argv[1:]
query = urllib.parse.urlencode({{"words": json.dumps(words)}})
answer = json.load(urllib.request.urlopen("http://127.0.0.1:{port}/kubectl?" + query))
print(answer["said"], flush=True)
if "port-forward" in words:
    time.sleep(60)
sys.exit(answer["code"])
"""
GPU = {"name": "NVIDIA A100-SXM4-80GB", "driver": "580.95", "memory_mib": "81920"}
LOG = (
    "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
    "GPU KV cache size: 3,000,000 tokens, Maximum concurrency for 8,192 tokens per request: 366x",
)


class FakeRelease:
    """`replicas` by id, each in the pod of its number; `told` counts requests."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.replicas: dict[str, str] = {}
        self.busy = 0
        self.loads_shown = True
        self.decided_at: float | None = None
        self.log = list(LOG)
        self.ttft_s, self.tpot_s = 0.001, 0.0005
        # what the next answer says once its engine was killed, and whether drains lose requests
        self.resume_mode = "continued"
        self.drain_loses = False
        self.comes_back = True
        self.commands: list[list[str]] = []
        self.explanations: dict[str, dict[str, Any]] = {}
        self._prompts: set[str] = set()
        self._killed: set[str] = set()
        self._kill = threading.Event()
        self._draining = False
        self._made = 0
        self.port = 0

    def start_engine(self) -> None:
        name = f"llama-{self._made}"
        self.replicas[f"replica-{self._made}"] = name
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        address = {"podIP": f"10.0.0.{self._made}"}
        self.api.add(ray_pod(name, ACTIVE, POOL, status={**ready, **address}))
        self._made += 1

    def kubectl(self, words: list[str]) -> dict[str, Any]:
        """What it prints, and its exit code."""
        self.commands.append(words)
        if "port-forward" in words:
            return {"said": f"Forwarding from 127.0.0.1:{self.port} -> 8000", "code": 0}
        if "delete" in words:
            self._draining = True
            self._lose(words[words.index("pod") + 1])
            return {"said": "deleted", "code": 0}
        if words[-2] == "look":
            evidence = {"versions": {"vllm": "0.32.0"}, "gpus": [GPU], "log": self.log}
            return {"said": json.dumps(evidence), "code": 0}
        pod = words[words.index("exec") + 1]
        self._killed |= {one for one, of in self.replicas.items() if of == pod}
        self._lose(pod)
        self._kill.set()
        return {"said": "3", "code": 0}

    def _lose(self, pod: str) -> None:
        self.replicas = {one: of for one, of in self.replicas.items() if of != pod}
        self.api.remove("Pod", pod, NAMESPACE)
        if self.comes_back:
            self.start_engine()

    def status(self) -> dict[str, Any]:
        replicas = [
            {
                "replica": one,
                "role": "active",
                "node_ip": f"10.0.0.{pod.rpartition('-')[2]}",
                "running": self.busy if self.loads_shown else None,
                "waiting": 0 if self.loads_shown else None,
                "startup_s": 12.5,
                "dtype": "bfloat16",
                "speculation": None,
            }
            for one, pod in self.replicas.items()
        ]
        pool = {"target_replicas": 2, "admission": {"queued": 0}, "replicas": replicas}
        return {"pools": {POOL: pool}}

    def decisions(self) -> dict[str, Any]:
        if self.decided_at is None:
            return {"decisions": []}
        return {"decisions": [{"at": self.decided_at, "duration_s": 0.5}]}

    def answer(self, body: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
        """Request id, replica and event; None: the end of the stream."""
        replica = next(iter(self.replicas))
        request_id = f"request-{len(self.explanations)}"
        system = body["messages"][0]["content"]
        is_cut = body["max_tokens"] >= LONG and system in self._prompts
        for number in range(body["max_tokens"]):
            if is_cut and number == CUT_AT:
                self._kill.wait(60)
            yield request_id, replica, {"choices": [{"delta": {"content": f" {number}"}}]}
            lost = replica in self._killed and self.resume_mode == "lost"
            if lost or (self._draining and self.drain_loses):
                yield request_id, replica, {"error": {"message": "the engine was lost"}}
                return
        told: dict[str, Any] = {
            "outcome": "ok",
            "prompt_tokens": {"confirmed": PROMPT_TOKENS},
            "cached_tokens": {"confirmed": 900 if system in self._prompts else 0},
            "ttft_s": {"engine": self.ttft_s},
            "tpot_s": self.tpot_s,
        }
        if replica in self._killed:
            told["resumed"] = {"mode": self.resume_mode, "waited_s": 0.25}
        self._prompts.add(system)
        self.explanations[request_id] = told
        yield request_id, replica, {"choices": [], "usage": {"completion_tokens": number + 1}}


@contextmanager
def running(folder: Path) -> Iterator[FakeRelease]:
    """Run a release of two engines. `folder` gets the program kubectl."""
    with Api(*release(), *_more()) as api:
        api.remove("Pod", "llama-0", NAMESPACE)
        fake = FakeRelease(api)
        for _ in range(2):
            fake.start_engine()
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(fake))
        server.daemon_threads = True
        fake.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        program = folder / "kubectl"
        program.write_text(KUBECTL.format(python=sys.executable, port=fake.port))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        yield fake
        server.shutdown()
        server.server_close()


def _more() -> list[dict[str, Any]]:
    keys = base64.b64encode(f"default={KEY}".encode()).decode()
    spec = {"ports": [{"name": "serve", "port": 80}], "selector": LABELS}
    return [
        named("v1", "Secret", "afx-antefix-auth", NAMESPACE, data={"api-keys": keys}),
        named("v1", "Service", "afx-antefix", NAMESPACE, spec=spec),
    ]


def _handler_of(fake: FakeRelease) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/kubectl":
                self._json(fake.kubectl(json.loads(parse_qs(url.query)["words"][0])))
            elif url.path == "/antefix/status":
                self._json(fake.status())
            elif url.path == "/antefix/decisions":
                self._json(fake.decisions())
            else:
                self._json(fake.explanations[url.path.rpartition("/")[2]])

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            has_begun = False
            for request_id, replica, event in fake.answer(body):
                if not has_begun:
                    self.send_response(200)
                    self.send_header("x-request-id", request_id)
                    self.send_header("x-antefix-replica", replica)
                    self.end_headers()
                    has_begun = True
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def _json(self, data: dict[str, Any]) -> None:
            content = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler
