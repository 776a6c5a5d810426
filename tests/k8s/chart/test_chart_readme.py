"""The chart's README, and the comments that it is made from."""

from k8s.chart import chart_readme
from k8s.chart.chart_comments import CHART, keys_of

VALUES = """\
# About the file.

# -- What it is called,
# in a few words.
name: ""
store:
  # -- How large it is.
  # @default -- as large as the disk
  size: 1
  # -- What it asks for.
  limits:
    cpu: "1"
  # -- Where it is kept.
  disk:
    # -- Its class.
    class: fast
"""


def test_the_page_checked_in_is_current() -> None:
    assert chart_readme.FILE.read_text() == chart_readme.readme(), "stale: run make chart"


def test_a_description_may_continue_on_the_next_lines() -> None:
    described = {".".join(key.path): key.description for key in keys_of(VALUES)}
    assert described["name"] == "What it is called, in a few words."


def test_a_default_may_be_shown_in_words() -> None:
    shown = {".".join(key.path): key.shown_default for key in keys_of(VALUES)}
    assert shown["store.size"] == "as large as the disk"
    assert shown["store.disk.class"] is None


def test_keys_without_comments_are_the_default_of_the_described_key_above() -> None:
    keys = {".".join(key.path): key for key in keys_of(VALUES)}
    assert list(keys) == ["name", "store.size", "store.limits", "store.disk", "store.disk.class"]
    assert keys["store.limits"].default == {"cpu": "1"}
    assert keys["store.disk"].is_section


def test_a_key_of_a_section_needs_no_comment() -> None:
    more, own = keys_of(VALUES + "  more: true\n  own:\n    cpu: 1\n")[-2:]
    assert (more.path, more.description, more.default) == (("store", "more"), "", True)
    assert (own.path, own.description, own.default) == (("store", "own"), "", {"cpu": 1})


def test_an_example_above_a_description_is_no_part_of_it() -> None:
    (key,) = keys_of("# For example:\n#\n#   a: 1\n#\n# -- What it is.\na: 2\n")
    assert key.description == "What it is."


def test_a_row_has_type_default_and_description() -> None:
    row = "| `service.port` | integer | `80` | Port on which clients reach the API. |"
    assert row in chart_readme.readme()


def test_an_empty_default_is_shown() -> None:
    assert '| `redis.persistence.storageClass` | string | `""` | ' in chart_readme.readme()


def test_a_section_begins_with_its_description() -> None:
    assert "### rayHead\n\nPod of Ray's head: " in chart_readme.readme()


def test_every_key_of_the_chart_is_described() -> None:
    keys = keys_of((CHART / "values.yaml").read_text())
    assert keys and not [".".join(key.path) for key in keys if not key.description]
