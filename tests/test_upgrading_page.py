"""docs/upgrading.md lists all that we lean on in others without a promise of theirs."""

import re

from tests.house import ROOT, modules

PAGE = (ROOT / "docs" / "upgrading.md").read_text()
NAMED = set(re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE))
# somebody else's private parts, and releases that a source is cited from
LEANS = re.compile(
    r"ray(\.serve)?\._(private|raylet)|ray\._private|_get_global_client"
    r"|(?<!self)\._(writer|actions|upper_bounds|buckets|sum|collector_to_names|labelnames)\b|ValueClass"
    r"|vLLM \d+\.\d+|vllm/[\w/]+\.py, \d"
)


def leaning() -> set[str]:
    """Files of ours that the page has to name."""
    found = {path for path in modules().values() if LEANS.search(path.read_text())}
    return {str(path.relative_to(ROOT)) for path in found}


def test_every_file_that_leans_on_something_private_is_listed() -> None:
    assert not leaning() - NAMED


def test_every_file_and_test_that_is_named_exists() -> None:
    assert not [name for name in NAMED if not (ROOT / name).is_file()]


def test_every_row_names_a_test() -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and "`" in row]
    assert len(rows) > 15
    assert not [row for row in rows if not re.search(r"`tests/[\w/]+\.py`", row)]


def test_the_search_finds_what_is_there() -> None:
    assert {"router/redis_lane.py", "deployments/node_drain.py"} <= leaning()
