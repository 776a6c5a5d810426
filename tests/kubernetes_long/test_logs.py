"""What `kubectl logs` and `antefix k8s logs` show of a request, and what they never show."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.helm.helm import ROOT
from tests.kubernetes.api import name_of, until
from tests.kubernetes_long.kubectl import kubectl
from tests.kubernetes_long.release import MODEL, Release
from tests.kubernetes_long.shapes import ONE_OF_EACH
from tests.some import some

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]

IN_PROMPT, IN_KEY = "xylophone-4711", "sk-marimba-0815"
ENDED, ENDED_IN_ENGINE = "request ended", "request ended in the engine"

# Asks the gateway of its pod; prints the status and the answer's text.
ASK = """
import json, sys, urllib.error, urllib.request
key, request_id, body = sys.argv[1:]
headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
headers["x-request-id"] = request_id
url = "http://127.0.0.1:8000/v1/chat/completions"
try:
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as answer:
        message = json.load(answer)["choices"][0]["message"]
        print(json.dumps([answer.status, message["content"]]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, ""]))
"""


def ask(release: Release, key: str, request_id: str) -> tuple[int, str]:
    """Return the status and the text of an answer to a prompt with the marker."""
    words = {"role": "user", "content": f"Tell me about the {IN_PROMPT}, and repeat its name."}
    body = json.dumps({"model": MODEL, "messages": [words], "max_tokens": 32})
    where = ("--namespace", release.namespace, "--container", "ray-gateway")
    command = ("python", "-c", ASK, key, request_id, body)
    status, text = json.loads(kubectl("exec", release.pod("gateway"), *where, "--", *command))
    return status, text


def log_of(release: Release, pod: str, component: str) -> str:
    where = ("--namespace", release.namespace, "--container", f"ray-{component}")
    return kubectl("logs", pod, *where)


def lines_of(release: Release, component: str) -> list[dict[str, Any]]:
    """Return the JSON lines of the first pod of a component."""
    log = log_of(release, release.pod(component), component)
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def line_about(release: Release, component: str, request_id: str) -> dict[str, Any]:
    """Return the line of a request in the log of a component's pod; wait until it has come."""

    def found() -> list[dict[str, Any]]:
        lines = lines_of(release, component)
        return [line for line in lines if line.get("request_id") == request_id]

    until(f"the line of {request_id} in the log of the {component}", found, within_s=30)
    (line,) = found()
    return line


def antefix_logs(release: Release, *arguments: str) -> list[dict[str, Any]]:
    command = (str(ROOT / ".venv" / "bin" / "python"), "-c", "from cli.main import app; app()")
    asked = ("k8s", "logs", "--namespace", release.namespace, "-o", "json", *arguments)
    done = subprocess.run([*command, *asked], cwd=ROOT, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_request_is_logged_by_its_gateway_and_its_engine(
    release: Release,
) -> None:
    """Log lines of one request in the pods of its gateway and engine."""
    release.settle(ONE_OF_EACH)
    assert ask(release, release.key(), "logs-1")[0] == 200
    for component, message in (("gateway", ENDED), ("engine", ENDED_IN_ENGINE)):
        line = line_about(release, component, "logs-1")
        assert (line["message"], line["component"]) == (message, component)
        assert (line["pool"], line["output_tokens"] > 0) == ("engine", True)
    found = antefix_logs(release, "--request", "logs-1", "--tail", "1000")
    assert {line["message"] for line in found} >= {ENDED, ENDED_IN_ENGINE}


def test_logs_of_vllm_and_of_the_serve_controller_reach_stdout_as_json(release: Release) -> None:
    """JSON logs of vLLM and the Ray Serve controller on stdout."""
    release.settle(ONE_OF_EACH)
    texts = [line["message"] for line in lines_of(release, "engine") if "file" in line]
    assert any("EngineCore" in text for text in texts)
    assert antefix_logs(release, "--component", "controller")


def test_no_log_of_a_pod_has_a_prompt_an_answer_or_a_key(release: Release) -> None:
    """Absence of prompts, answers and keys from the logs of all pods."""
    release.settle(ONE_OF_EACH)
    key = release.key()
    status, answer = ask(release, key, "logs-2")
    assert (status, bool(answer.strip())) == (200, True)
    assert ask(release, IN_KEY, "logs-3") == (401, "")
    line_about(release, "engine", "logs-2")
    for component in ("gateway", "engine", "head"):
        for pod in some(release.pods(component)):
            log = log_of(release, name_of(pod), component)
            # as JSON has it, without the quotes
            hidden = (IN_PROMPT, IN_KEY, key, json.dumps(answer.strip())[1:-1])
            assert not [text for text in hidden if text in log]
