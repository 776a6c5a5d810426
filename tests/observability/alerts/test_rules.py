"""The rule file, Alertmanager's file and the runbooks that come of an SLO file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from common.errors import Problem
from deployments.gateway.reference.error_codes import ERROR_CODES
from observability import GENERATED
from observability.alerts import alertmanager, rules, runbooks
from observability.alerts.promtool import complaints
from observability.alerts.slo_file import load
from tests.missing import program
from tests.some import some

ROOT = Path(__file__).parents[3]
RUNBOOKS = ROOT / "docs" / "runbooks"
REMEDY = "out of step with observability/slo.yaml: make observability"

EXPRESSIONS = [rule["expr"] for rule in rules.alerts(load())]
VLLM_ARGUMENTS = {"gpu_memory_utilization", "max_model_len", "max_num_seqs"}
PAGES = sorted(RUNBOOKS.glob("*.md"))
LINK = re.compile(r"\]\(([^)]+)\)")


def test_shipped_files_match_the_slo_file() -> None:
    slo_file = load()
    assert (GENERATED / "rules.yaml").read_text() == rules.render(slo_file), REMEDY
    assert (GENERATED / "alertmanager.yaml").read_text() == alertmanager.render(slo_file), REMEDY
    pages = runbooks.render(slo_file, runbooks.load(slo_file))
    assert {page.name: page.read_text() for page in PAGES} == pages, REMEDY


def test_promtool_takes_the_rules() -> None:
    assert program("promtool")
    assert complaints(rules.render(load())) == ""


def test_promtool_reports_an_invalid_query() -> None:
    assert program("promtool")
    wrong = rules.render(load()).replace(
        "sum by (pool) (antefix_queue", "sum by pool (antefix_queue"
    )
    said = complaints(wrong)
    assert said is not None and "AntefixQueueDeep" in said
    assert "\n" not in said and "/" not in said


def test_alertmanager_takes_its_file(tmp_path: Path) -> None:
    file = tmp_path / "alertmanager.yaml"
    file.write_text(alertmanager.render(load()))
    command = [program("amtool"), "check-config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("severity", "receiver"), [("page", "page"), ("ticket", "ticket"), ("unheard-of", "ticket")]
)
def test_an_alert_is_routed_by_its_severity(severity: str, receiver: str) -> None:
    config = f"--config.file={GENERATED / 'alertmanager.yaml'}"
    labels = ["service=antefix", f"severity={severity}"]
    command = [program("amtool"), "config", "routes", "test", config, *labels]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == receiver


def test_alerts_named_in_inhibit_rules_exist() -> None:
    config = yaml.safe_load(alertmanager.render(load()))
    named = re.findall(r'alertname!?="(\w+)"', str(config["inhibit_rules"]))
    assert named and set(named) <= set(load().alert_names())


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_comparison_operators_have_spaces_around_them(expr: str) -> None:
    # so that it can be rewritten as `> bool`, which has a value whether it holds or not
    bare = re.sub(r"\{[^}]*\}", "", expr)
    found = re.findall(r"(.?)([<>]=?|[=!]=)(.?)", bare)
    assert found
    assert all(before == " " == after for before, _, after in found)


def test_every_alert_names_its_runbook_and_its_dashboard() -> None:
    for rule in some(rules.alerts(load())):
        assert (ROOT / rule["annotations"]["runbook_url"]).is_file()
        assert rule["annotations"]["dashboard"] in {
            "Fleet SLO", "Routing", "Capacity", "Engine", "Tenants"
        }  # fmt: skip
        assert {"severity", "owner", "service"} <= rule["labels"].keys()


def test_most_runbooks_have_links() -> None:
    assert sum(bool(LINK.search(page.read_text())) for page in PAGES) > len(PAGES) / 2


def exists(page: Path, link: str) -> bool:
    """Return whether a link of a page leads to a file, and to a heading there if it names one."""
    file, _, place = link.partition("#")
    headings = re.findall(r"^#+ (.+)$", (page.parent / file).read_text(), re.M)
    return not place or place in {heading.lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_targets_of_a_runbook_exist(page: Path) -> None:
    text = page.read_text()
    assert not [link for link in LINK.findall(text) if not exists(page, link)]
    assert set(re.findall(r"\*([A-Z][\w ]+)\*", text)) <= {
        *("Fleet SLO", "Routing", "Capacity", "Engine", "Tenants"),
        *("Targets", "Failed"),  # of Prometheus, and of the page
    }


def test_a_runbook_names_only_keys_that_a_fleet_file_has() -> None:
    known = set(
        re.findall(r"^\| `([\w.<>]+)`", (ROOT / "docs" / "fleet-file.md").read_text(), re.M)
    )
    # described once, for both
    known |= {key.replace("interactive", "batch") for key in known}
    of_a_pool = {key.removeprefix("pools.<name>.") for key in known}
    last = {key.rpartition(".")[2] for key in known}
    codes = {code.name for group in ERROR_CODES.values() for code in group}
    named = {
        f"{page.name}: {key}": key
        for page in PAGES
        for key in re.findall(r"`([a-z]+_[a-z_0-9]+|[a-z_]+\.[a-z_.0-9]+)`", page.read_text())
        if key not in codes | VLLM_ARGUMENTS and not key.startswith(("engine_args.", "antefix_"))
    }
    # each way to name one is found, and one that does not exist would be
    assert {"max_ongoing_requests", "gateway.replicas"} <= known | of_a_pool | last
    assert "gateway.no_such_key" not in known | of_a_pool | last
    wrong = [place for place, key in some(named.items()) if key not in known | of_a_pool | last]
    assert not wrong


def test_rendering_twice_gives_the_same() -> None:
    assert rules.render(load()) == rules.render(load())


def test_a_custom_alert_needs_a_custom_runbook(tmp_path: Path) -> None:
    file, beside = tmp_path / "mine.yaml", tmp_path / "runbooks.yaml"
    text = (ROOT / "observability" / "slo.yaml").read_text()
    file.write_text(text.replace("AntefixQueueDeep", "ShopQueueDeep"))
    with pytest.raises(Problem, match=f"{beside}: the alert ShopQueueDeep has no runbook"):
        runbooks.load(load(file), file)
    beside.write_text("ShopQueueDeep: {means: The shop waits., look: [The queue.], do: [Wait.]}\n")
    slo_file = load(file)
    page = runbooks.render(slo_file, runbooks.load(slo_file, file))["ShopQueueDeep.md"]
    assert "The shop waits." in page
    assert "antefix_queue_requests" in page


def test_a_mistake_in_a_runbook_is_reported(tmp_path: Path) -> None:
    file, beside = tmp_path / "mine.yaml", tmp_path / "runbooks.yaml"
    file.write_text((ROOT / "observability" / "slo.yaml").read_text())
    beside.write_text("AntefixQueueDeep: {mean: It waits., look: [The queue.], do: [Wait.]}\n")
    with pytest.raises(Problem, match=r"runbooks\.yaml:1: AntefixQueueDeep\.mean: unknown key"):
        runbooks.load(load(file), file)
