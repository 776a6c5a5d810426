"""Steps of runbooks work on Kubernetes: what they run there fits what the chart makes."""

from __future__ import annotations

import re
import shlex
import stat
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from observability.alerts import runbooks
from observability.alerts.on_kubernetes import equivalents
from observability.alerts.slo_file import load
from tests.helm.helm import CHART, REGISTRY, ROOT, Object, run
from tests.observability.test_runbook_steps import STEPS, parsed
from tests.some import some

PAGES = runbooks.render(load(), runbooks.load(load()))
QUERIES = re.compile(r"^```.*?^```$", re.M | re.S)
QUOTED = {
    quoted for page in PAGES.values() for quoted in re.findall(r"`([^`]+)`", QUERIES.sub("", page))
}
LINES = sorted(quoted for quoted in QUOTED if quoted.startswith("kubectl "))
# They read a fleet of this machine, or files of it.
LOCAL = re.compile(r"`(antefix (?:status|logs|keys)|redis-cli|curl )")
VALUES = CHART / "ci" / "minimal-values.yaml"
# KubeRay adds this container to the head's pod.
AUTOSCALER = "antefix/component=head", "autoscaler"


class Pod(NamedTuple):
    labels: dict[str, str]
    containers: set[str]


@cache
def chart() -> list[Object]:
    """As `helm install antefix --namespace antefix` makes it."""
    values = ("--values", str(VALUES), *REGISTRY)
    text = run("template", "antefix", str(CHART), "--namespace", "antefix", *values)
    return [one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if one]


def pods(found: Any) -> Iterator[Pod]:
    """Every template of a pod, however deep."""
    if isinstance(found, list):
        for one in found:
            yield from pods(one)
    elif isinstance(found, dict):
        spec = found.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            names = {container["name"] for container in spec["containers"]}
            yield Pod(found.get("metadata", {}).get("labels", {}), names)
        for one in found.values():
            yield from pods(one)


def selected(selector: str) -> list[Pod]:
    wanted = dict(pair.split("=") for pair in selector.split(","))
    return [pod for pod in pods(chart()) if wanted.items() <= pod.labels.items()]


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words else ""


@pytest.mark.parametrize("line", LINES)
def test_a_command_is_for_the_release_that_runbooks_assume(line: str) -> None:
    commands = line.split(" | xargs -I POD ")
    for words in some(map(shlex.split, commands)):
        assert words[:3] == ["kubectl", "-n", "antefix"]
        assert words[3] in ("get", "describe", "delete", "logs", "exec", "port-forward")


@pytest.mark.parametrize("line", [line for line in LINES if " -l " in line])
def test_a_command_selects_pods_of_the_chart_and_names_a_container_of_them(line: str) -> None:
    words = shlex.split(line)
    found = selected(option(words, "-l"))
    assert found
    container = option(words, "-c")
    if container and (option(words, "-l"), container) != AUTOSCALER:
        assert all(container in pod.containers for pod in found)


@pytest.mark.parametrize("line", [line for line in LINES if "port-forward" in line])
def test_a_command_forwards_a_port_of_the_charts_service(line: str) -> None:
    target, ports = shlex.split(line)[4:]
    (service,) = [
        one
        for one in chart()
        if one["kind"] == "Service" and f"service/{one['metadata']['name']}" == target
    ]
    assert int(ports.split(":")[1]) in [port["port"] for port in service["spec"]["ports"]]


@pytest.mark.parametrize("line", [line for line in LINES if "xargs" in line])
def test_a_command_runs_in_each_pod_that_it_finds(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, kubectl = tmp_path / "log", tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >> {log}\n'
        '[ "$3" = get ] && printf "pod/a\\npod/b\\n" || true\n'
    )
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    subprocess.run(["sh", "-c", line], check=True)
    asked = [said for said in log.read_text().splitlines() if " exec " in said]
    assert [said.split()[3] for said in asked] == ["pod/a", "pod/b"]
    assert all(" -- " in said for said in asked)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.text[:50])
def test_a_step_that_reads_a_fleet_here_says_what_to_run_on_kubernetes(step: Any) -> None:
    local = LOCAL.findall(re.sub(r"`[^`]*--file[^`]*`", "", step.text))
    assert not local or list(equivalents(step.text))


def test_each_step_of_a_page_has_its_commands_below_it() -> None:
    page = PAGES["AntefixQueueDeep.md"]
    step = page.index("`antefix logs --component engine`")
    below = page.index(
        "   On Kubernetes: `antefix k8s logs --namespace antefix --component engine`", step
    )
    assert "\n\n" not in page[step : below - 2]


def test_pages_link_only_to_how_the_index_reaches_a_gateway() -> None:
    links = re.findall(r"\[([^]]+)\]\(README.md#on-kubernetes\)", "\n".join(PAGES.values()))
    assert {*links} == {"a forwarded port"}
    assert "port-forward" in PAGES["README.md"].partition("## On Kubernetes")[2]


@pytest.mark.parametrize("line", sorted(q for q in QUOTED if re.match(r"antefix .* --", q)))
def test_a_command_of_antefix_is_one(line: str) -> None:
    parsed(shlex.split(line)[1:])


def test_a_page_shows_each_command_for_kubernetes_once() -> None:
    for page in some(PAGES.values()):
        shown = re.findall(r"^   On Kubernetes: (.+)$", page, re.M)
        assert len(shown) == len({*shown})


def test_pages_that_are_linked_exist() -> None:
    links = {target for page in PAGES.values() for target in re.findall(r"\]\((\.\./[^)#]+)", page)}
    for target in some(links):
        assert (ROOT / "docs" / "runbooks" / target).exists(), target


def test_all_kinds_of_commands_are_checked() -> None:
    assert len(LINES) > 6
    for part in ("port-forward", "redis-cli", "/metrics", "component=head", "logs -l"):
        assert part in " ".join(LINES)
