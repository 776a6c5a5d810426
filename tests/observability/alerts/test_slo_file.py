"""What an SLO file may say, and what is said about one that is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from common.errors import Problem
from common.yaml_file import FileError
from observability.alerts.slo_file import BURNS, SHIPPED, SloFile, load
from tests.some import some

Change = Callable[[dict[str, Any]], object]


def changed(folder: Path, change: Change) -> Path:
    """The shipped file with a change."""
    data = yaml.safe_load(SHIPPED.read_text())
    change(data)
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def slo(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(of for of in data["slos"] if of["name"] == name)


def level(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(of for of in data["levels"] if of["name"] == name)


def events(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = slo(data, "ttft")["sli"]["events"]
    return found


WRONG: dict[str, tuple[Change, str]] = {
    "unknown key": (
        lambda data: data.update(target={}),
        "target: unknown key. Did you mean targets?",
    ),
    "unknown class": (
        lambda data: data["targets"].update(urgent={"ttft_s": 1}),
        "targets.urgent: string should match pattern",
    ),
    "median above the promise": (
        lambda data: data["targets"]["interactive"].update(ttft_p50_s=2),
        "targets.interactive: ttft_p50_s 2.0 is above ttft_s 0.5. The median cannot have the "
        "longer objective: lower ttft_p50_s",
    ),
    "an end before the first token": (
        lambda data: data["targets"]["batch"].update(e2e_s=60),
        "targets.batch: e2e_s 60.0 is below ttft_s 120.0. An answer cannot end before its first "
        "token: raise e2e_s",
    ),
    "no throughput": (
        lambda data: data["throughput"].update(tokens_per_s=0),
        "throughput.tokens_per_s = 0: too low. Write more than 0.",
    ),
    "a throughput at any load": (
        lambda data: data["throughput"].pop("running"),
        "throughput.running: missing. Add it: it has no default",
    ),
    "no time": (
        lambda data: data["targets"]["batch"].update(ttft_s=0),
        "targets.batch.ttft_s = 0: too low. Write more than 0.",
    ),
    "text for a number": (
        lambda data: slo(data, "ttft").update(objective="99"),
        "slos.ttft.objective = '99': not a number. Write 99, without quotes.",
    ),
    "nothing may fail": (
        lambda data: slo(data, "ttft").update(objective=100),
        "slos.ttft.objective = 100: too high. Write less than 100.",
    ),
    "missing": (
        lambda data: slo(data, "ttft").pop("objective"),
        "slos.ttft.objective: missing. Add it: it has no default",
    ),
    "no window": (
        lambda data: events(data).update(error_query="sum by (pool) (rate(bad[5m]))"),
        "slos.ttft.sli.events.error_query = sum by (pool) (rate(bad[5m])): holds no {{.window}}. "
        "Write it as sum by (pool) (rate(a_counter[{{.window}}]))",
    ),
    "no pool": (
        lambda data: events(data).update(total_query="sum(rate(all[{{.window}}]))"),
        "holds no by (pool)",
    ),
    "an alert that cannot fire": (
        lambda data: slo(data, "ttft-p50")["alerting"].update(page_alert={}),
        "slos.ttft-p50: its page can never fire: with an objective of 50.0% the budget burns at "
        "most 2 times as fast as planned. Set alerting.page_alert: {disable: true}, or raise the "
        "objective",
    ),
    "two SLOs of a name": (
        lambda data: slo(data, "tpot").update(name="ttft"),
        "slos.ttft.name = ttft: another one has this name. Rename one of the two.",
    ),
    "two alerts of a name": (
        lambda data: level(data, "AntefixQueueDeep").update(name="AntefixTtftBudgetBurn"),
        "levels.AntefixTtftBudgetBurn.name = AntefixTtftBudgetBurn: another one has this name",
    ),
    "nobody's": (
        lambda data: data.update(labels={"team": "x"}),
        "labels.owner: missing. Set it to the team that receives the alert",
    ),
    "no limit": (
        lambda data: level(data, "AntefixQueueDeep").update(page={"for": "5m"}),
        "levels.AntefixQueueDeep.page: neither above nor below. Give one of them a number",
    ),
    "no severity": (
        lambda data: level(data, "AntefixOverflowLong").pop("ticket"),
        "levels.AntefixOverflowLong: neither page nor ticket. Set `page`, `ticket` or both",
    ),
    "a page before the ticket": (
        lambda data: level(data, "AntefixQueueDeep")["page"].update(above=50),
        "levels.AntefixQueueDeep: it pages above 50.0, before the ticket above 100.0. Swap the two",
    ),
    "nothing between": (
        lambda data: level(data, "AntefixGpuUtilization")["ticket"].update(below=99.5),
        "levels.AntefixGpuUtilization.ticket: below 99.5 and above 99.0 leave nothing between",
    ),
    "a duration": (
        lambda data: level(data, "AntefixQueueDeep")["page"].update({"for": "5 minutes"}),
        "levels.AntefixQueueDeep.page.for = 5 minutes: string should match pattern",
    ),
    "another period": (
        lambda data: data.update(period="7d"),
        "period = 7d: input should be '30d'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_has_its_remedy(case: str, tmp_path: Path) -> None:
    change, says = WRONG[case]
    file = changed(tmp_path, change)
    with pytest.raises(Problem) as caught:
        load(file)
    assert re.match(rf"{re.escape(str(file))}:\d+: ", str(caught.value))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    def spoil(data: dict[str, Any]) -> None:
        data["periode"] = "30d"
        slo(data, "ttft")["objective"] = 0

    with pytest.raises(Problem) as caught:
        load(changed(tmp_path, spoil))
    assert len(str(caught.value).splitlines()) == 2


def test_an_error_is_reported_with_its_line(tmp_path: Path) -> None:
    lines = SHIPPED.read_text().splitlines()
    high = next(n for n, line in enumerate(lines) if line.strip() == "objective: 99.9")
    lines[high] = lines[high].replace("99.9", "999")
    owner = next(n for n, line in enumerate(lines) if "{owner: serving}" in line)
    lines[owner] = lines[owner].replace("serving", "1")
    file = tmp_path / "mine.yaml"
    file.write_text("\n".join([*lines, "periode: 30d"]))
    with pytest.raises(FileError) as caught:
        load(file)
    assert str(caught.value).splitlines() == [
        f"{file}:{owner + 1}: labels.owner = 1: not text. Put quotes around it.",
        f"{file}:{high + 1}: slos.availability.objective = 999: too high. Write less than 100.",
        f"{file}:{len(lines) + 1}: periode: unknown key. Did you mean period?",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("- a\n", "not a mapping"),
        ("version: [\n", "not YAML"),
        ("service: a\nservice: b\n", ":2: service: given twice, first on line 1"),
    ],
)
def test_a_file_that_is_not_an_slo_file_is_rejected(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(Problem, match=says):
        load(file)


def test_an_unreadable_slo_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="no such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(Problem, match="cannot be read: is a directory"):
        load(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Problem, match="not UTF-8"):
        load(binary)


def test_targets_are_plain_seconds() -> None:
    targets = load().targets
    assert targets["interactive"].ttft_s == 0.5
    assert targets["interactive"].ttft_p50_s == 0.1
    assert targets["batch"].tpot_s is None


def test_an_slo_file_cannot_be_changed_once_it_is_read() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load().slos[0].objective = 1.0  # type: ignore[misc]


def test_unreachable_burn_rates_are_left_out(tmp_path: Path) -> None:
    file = changed(tmp_path, lambda data: slo(data, "goodput").update(objective=90))
    goodput = next(of for of in load(file).slos if of.name == "goodput")
    assert goodput.burns("page") == (BURNS["page"][1],)
    assert goodput.burns("ticket") == BURNS["ticket"]


def test_no_alert_of_the_shipped_file_can_never_fire() -> None:
    for of in some(load().slos):
        for severity in ("page", "ticket"):
            assert all(factor * of.budget < 1 for factor, *_ in of.burns(severity))
            assert of.burns(severity) or of.alerting.of(severity).disable


def test_the_slo_file_uses_the_field_names_of_sloth() -> None:
    # https://sloth.dev/specs/default/, without our three sections, the period and the runbooks
    ours = {"targets", "throughput", "levels", "period", "runbook_base"}
    assert SloFile.model_fields.keys() - ours == {"version", "service", "labels", "slos"}


def test_the_default_throughput_is_what_the_default_tpot_comes_to() -> None:
    file = load()
    assert file.throughput is not None
    tpot_s = file.targets["interactive"].tpot_s
    assert tpot_s is not None
    assert file.throughput.tokens_per_s == pytest.approx(file.throughput.running / tpot_s)
