"""What runbooks advise is possible: settings, restarts, commands, addresses, log lines, metrics."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer.core import TyperGroup

from cli.main import app
from deployments.fleet.applications import (
    COLD_FOR_ALL,
    COLD_FOR_GATEWAYS,
    COLD_FOR_POOL,
    HOT,
    HOT_OF_POOL,
)
from observability.alerts import runbooks
from observability.alerts.slo_file import load

ROOT = Path(__file__).parents[2]
PRODUCT = [
    file.read_text()
    for folder in ("deployments", "router", "observability", "autoscaling")
    for file in (ROOT / folder).rglob("*.py")
]
METRICS = (ROOT / "docs" / "metrics.md").read_text()

ENGINE = "restarts the pool's engines"
GATEWAYS = "restarts the gateways"
ALL = "restarts the gateways and all engines"
RESTARTS = {
    **dict.fromkeys((*HOT, *HOT_OF_POOL), ""),
    **dict.fromkeys(COLD_FOR_POOL, ENGINE),
    **dict.fromkeys(COLD_FOR_GATEWAYS, GATEWAYS),
    **dict.fromkeys(COLD_FOR_ALL, ALL),
}
# Runbooks write some arguments of vLLM without `engine_args.` before them.
VLLM_ARGUMENTS = ("gpu_memory_utilization", "max_model_len", "max_num_seqs")

PROGRAMS = {
    "helm": {"rollback", "upgrade", "get", "history", "test"},
    "kubectl": {"get", "describe", "logs", "delete", "drain", "rollout", "cordon"},
    "curl": None,
    "dmesg": None,
    "nvidia-smi": None,
    "redis-cli": None,
}


class Step(NamedTuple):
    alert: str
    part: str
    text: str


STEPS = [
    Step(alert, part, text)
    for alert, runbook in runbooks.load(load()).items()
    for part, texts in (("look", runbook.look), ("do", runbook.do))
    for text in texts
]
QUOTED = [(step, quoted) for step in STEPS for quoted in re.findall(r"`([^`]+)`", step.text)]


def restart_of(word: str) -> str | None:
    """What a change of this setting restarts, empty: nothing; None where it is no setting."""
    if word in VLLM_ARGUMENTS:
        return ENGINE
    parts = word.removeprefix("pools.<name>.").split(".")
    whole = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    found = [RESTARTS[path] for path in whole if path in RESTARTS]
    return found[0] if found else None


def restarts_of(text: str) -> set[str]:
    found = [restart_of(word) for word in re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)*)`", text)]
    return {restart for restart in found if restart is not None}


def complaint(text: str) -> str:
    """What is wrong with what a step says of restarts; empty where it is right."""
    needed = {restart for restart in restarts_of(text) if restart}
    for restart in needed:
        if restart not in text:
            return f"does not say that it {restart}"
    if restarts_of(text) and not needed:
        claims = re.sub(r"(no|without a) restart", "", text)
        if re.search(r"restart|started again|new start", claims):
            return "says that a setting restarts something, and it is taken over at once"
    return ""


@pytest.mark.parametrize(
    "step", [step for step in STEPS if step.part == "do"], ids=lambda step: step.text[:50]
)
def test_a_step_says_what_it_restarts(step: Step) -> None:
    assert complaint(step.text) == ""


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            "Raise `autoscaling.max_replicas`; it takes effect when the fleet is started again.",
            True,
        ),
        ("Give the pool an `overflow` and restart the fleet.", True),
        ("Change `gateway.tenants`, which needs no restart.", False),
        ("Raise `slo.interactive.ttft_s`.", False),
        ("Lower `engine_args.max_num_seqs`.", True),
        ("Lower `max_num_seqs`.", True),
        ("Lower `engine_args.max_num_seqs`. This restarts the pool's engines.", False),
        ("Set `metrics.host`. This restarts the gateways.", True),
        ("Set `metrics.host`. This restarts the gateways and all engines.", False),
        ("Raise `gateway.cpus`.", True),
        ("Restart the node.", False),
    ],
)
def test_incorrect_statements_about_a_restart_are_found(text: str, wrong: bool) -> None:
    assert (complaint(text) != "") is wrong


def test_settings_are_found_in_runbooks() -> None:
    found = [restart for step in STEPS for restart in restarts_of(step.text)]
    assert found.count("") > 15 and found.count(ENGINE) > 10 and ALL in found


def parsed(words: list[str]) -> None:
    """Read a command line as `antefix` does, without running it. Raises TyperException."""
    command: Any = typer.main.get_command(app)
    context = None
    name: str | None = "antefix"
    while isinstance(command, TyperGroup):
        context = command.make_context(name, words[:1], parent=context, resilient_parsing=True)
        name, command, words = command.resolve_command(context, words)
        if command is None:
            raise typer.BadParameter(f"no such command in {context.command_path}")
    # a mere name of a command, as in "measure it with `antefix calibrate`", lacks its arguments
    command.make_context(name, words, parent=context, resilient_parsing=not words)


COMMANDS = sorted({quoted for _, quoted in QUOTED if quoted.startswith("antefix ")})


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_antefix_is_one(line: str) -> None:
    parsed(shlex.split(line)[1:])


@pytest.mark.parametrize("line", ["antefix statu", "antefix logs --component", "antefix key make"])
def test_a_command_that_antefix_lacks_is_found(line: str) -> None:
    with pytest.raises(typer.TyperException):
        parsed(shlex.split(line)[1:])


def test_other_commands_use_known_programs_and_subcommands() -> None:
    checked = 0
    for _, quoted in QUOTED:
        program, _, rest = quoted.partition(" ")
        if program in PROGRAMS:
            checked += 1
            verbs = PROGRAMS[program]
            assert verbs is None or rest.removeprefix("-n antefix ").split()[0] in verbs, quoted
    assert checked >= 5


def test_gateway_addresses_named_in_runbooks_exist() -> None:
    quoted = {quoted for _, quoted in QUOTED if quoted.startswith("/")}
    addresses = {address.partition("#")[0] for address in quoted}
    assert len(addresses) >= 3
    for address in addresses:
        assert any(f'"{address}"' in text for text in PRODUCT), address


def test_log_lines_quoted_in_runbooks_exist_in_the_code() -> None:
    lines = {
        quoted
        for _, quoted in QUOTED
        if " " in quoted
        and not quoted.startswith("antefix ")
        and quoted.partition(" ")[0] not in PROGRAMS
        and "antefix_" not in quoted  # a query
    }
    lines |= {quoted for step in STEPS for quoted in re.findall(r'"(the engine [^"]+)"', step.text)}
    assert len(lines) >= 5
    for line in lines:
        assert any(line in text for text in PRODUCT), line


def test_metrics_named_in_runbooks_exist() -> None:
    metrics = {name for step in STEPS for name in re.findall(r"\bantefix_[a-z_]+\b", step.text)}
    assert metrics
    for metric in metrics:
        assert f"`{metric}`" in METRICS, metric
