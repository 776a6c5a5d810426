"""docs/upgrading.md lists all parts of others that Antefix uses without their promise."""

import re

from tests.house import ROOT, modules

PAGE = (ROOT / "docs" / "upgrading.md").read_text()
NAMED = set(re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE))
# private parts of others, and releases that a source is cited from
LEANS = re.compile(
    r"ray(\.serve)?\._(private|raylet)|ray\._private|_get_global_client"
    r"|(?<!self)\._(writer|actions|upper_bounds|buckets|sum|collector_to_names|labelnames)\b|ValueClass"
    r"|vLLM \d+\.\d+|vllm/[\w/]+\.py, \d"
)


def files_with_private_apis() -> set[str]:
    """Return the files of Antefix that the page has to name."""
    found = {path for path in modules().values() if LEANS.search(path.read_text())}
    return {str(path.relative_to(ROOT)) for path in found}


def test_every_file_that_uses_a_private_api_is_listed() -> None:
    assert not files_with_private_apis() - NAMED


def test_every_file_and_test_that_is_named_exists() -> None:
    assert not [name for name in NAMED if not (ROOT / name).is_file()]


def vllm_rows() -> list[list[str]]:
    """What vLLM's table has of each hook: it, files, model runner, tests."""
    table = PAGE.partition("## vLLM")[2].partition("###")[0]
    rows = [row.strip("|").split("|") for row in table.splitlines() if row.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_every_hook_of_model_runner_v2_has_a_test() -> None:
    assert {runner for _, _, runner, _ in vllm_rows()} <= {"V1", "V2", "both", "none"}
    of_v2 = [row for row in vllm_rows() if row[2] in ("V2", "both")]
    assert len(of_v2) > 8
    assert not [row for row in of_v2 if "`tests/runner_v2/test_" not in row[3]]


def test_a_file_that_uses_a_model_runner_has_a_row_that_names_the_runner() -> None:
    named = " ".join(files for _, files, runner, _ in vllm_rows() if runner != "none")
    engine = (ROOT / "deployments" / "engine").rglob("*.py")
    files = [str(path.relative_to(ROOT)) for path in engine if "vllm.v1.worker" in path.read_text()]
    assert files
    assert not [file for file in files if f"`{file}`" not in named]


def test_every_row_names_a_test() -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and "`" in row]
    assert len(rows) > 15
    assert not [row for row in rows if not re.search(r"`tests/[\w/]+\.py`", row)]


def test_the_search_finds_known_uses_of_private_apis() -> None:
    assert {"router/redis/redis_lane.py", "deployments/node_drain.py"} <= files_with_private_apis()
