"""docs/planning.md: what it shows is what the command prints, and its numbers are the code's."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from deployments.fleet.fleet_file import check_text, parse_fleet
from tests.weights.published import points, table
from weights.model import memory
from weights.model.cache_dtype import CACHE_DTYPES
from weights.model.gpus import GPUS
from weights.plan import drafting, roofline

PAGE = Path(__file__).parent.parent / "docs" / "planning.md"
TEXT = PAGE.read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


def without_ends(text: str) -> list[str]:
    """Lines without spaces at their ends, as editors keep none."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.mark.parametrize("block", blocks("console"))
def test_a_command_prints_what_the_page_shows(block: str) -> None:
    command, _, shown = block.partition("\n")
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "antefix"
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert without_ends(shown) == without_ends(done.stdout)


@pytest.mark.parametrize("command", [line for each in blocks("sh") for line in each.splitlines()])
def test_a_planned_fleet_file_is_a_fleet_file(command: str) -> None:
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    assert parse_fleet(done.stdout, check_engine_args=False).pools


@pytest.mark.parametrize("text", blocks("yaml"))
def test_a_fleet_on_the_page_passes_the_checks(text: str) -> None:
    checked = check_text(text, check_engine_args=False)
    assert (checked.warnings, checked.notes) == ((), ())


@pytest.mark.parametrize(
    ("name", "times"), [("int8_per_token_head", "1.94"), ("int4_per_token_head", "3.76")]
)
def test_the_page_states_how_many_tokens_a_smaller_cache_holds(name: str, times: str) -> None:
    sizes = (CACHE_DTYPES[each].bytes_of(128) for each in ("auto", name))
    sixteen, smaller = sizes
    assert f"{sixteen / smaller:.2f}" == times
    assert f"{times} times" in TEXT


def test_the_table_of_measurements_is_the_computed_one() -> None:
    """`python -m tests.weights.published` prints it."""
    assert "\n".join(table()) in TEXT


def test_the_error_stated_on_the_page_is_the_computed_one() -> None:
    errors = sorted(abs(point.error) for point in points() if not point.is_outlier)
    signed = [point.error for point in points() if not point.is_outlier]
    stated = re.search(r"within (\d+)%\. .*?(\d+)% below and (\d+)% above", TEXT, re.S)
    assert stated is not None
    half, below, above = (int(number) / 100 for number in stated.groups())
    assert errors[len(errors) // 2] == pytest.approx(half, abs=0.005)
    assert min(signed) == pytest.approx(-below, abs=0.005)
    assert max(signed) == pytest.approx(above, abs=0.005)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    re.findall(r"^\| `([A-Z_]+)(?:\[\"(\w+)\"\])?` \| ([\d.e-]+) \|", TEXT, re.M),
)
def test_each_assumption_on_the_page_matches_the_code(name: str, key: str, value: str) -> None:
    (found,) = {
        getattr(module, name) if not key else getattr(module, name)[key]
        for module in (memory, drafting, roofline)
        if hasattr(module, name)
    }
    assert found == float(value)


def test_the_help_of_drafts_accepted_has_the_assumed_shares() -> None:
    n_grams, models = (drafting.DRAFTS_ACCEPTED[of] for of in ("ngram_gpu", "eagle3"))
    assert f"default: {n_grams} for n-grams, {models} for" in PAGE.with_name("cli.md").read_text()


def test_the_page_lists_every_gpu() -> None:
    (row,) = re.findall(r"^\| `--gpu` \| (.+) \|$", TEXT, re.M)
    assert re.findall(r"`([^`]+)`", row) == [gpu.name for gpu in GPUS]
