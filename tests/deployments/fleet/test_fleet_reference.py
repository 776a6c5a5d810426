"""The reference page is made from the models and checked in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_reference import reference
from deployments.fleet.settings.reserved import RESERVED_ENGINE_ARGS, RESERVED_ENV
from tests.sentences import assert_sentences

PAGE = Path(__file__).parents[3] / "docs" / "fleet-file.md"


def meanings_of(section: type[BaseModel], above: str) -> Iterator[tuple[str, str]]:
    """Every key of a section and of those below it, with its description."""
    for name, field in section.model_fields.items():
        yield f"{above}{name}", field.description or ""
        for inner in sections_in(field.annotation):
            yield from meanings_of(inner, f"{above}{name}.")


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from sections_in(argument)


def test_the_page_checked_in_is_current() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written.rstrip() == reference().rstrip(), f"{PAGE.name} is stale: run make reference"


@pytest.mark.parametrize(("key", "meaning"), meanings_of(Fleet, ""))
def test_every_key_is_described_in_whole_sentences(key: str, meaning: str) -> None:
    assert_sentences(meaning)


@pytest.mark.parametrize("reason", sorted({*RESERVED_ENGINE_ARGS.values(), *RESERVED_ENV.values()}))
def test_the_remedy_for_a_reserved_key_is_whole_sentences(reason: str) -> None:
    assert_sentences(reason)


def test_a_number_is_listed_with_its_bounds_and_default() -> None:
    row = "| `gateway.port` | integer ≥ 1 and ≤ 65535 | `8000` |"
    assert row in reference()


def test_null_is_named_where_it_is_not_the_default() -> None:
    assert "| `gateway.move_after_s` | number or null | `5` |" in reference()


def test_keys_of_a_pool_are_listed_below_a_placeholder_name() -> None:
    assert "| `pools.<name>.resources.gpus` | number ≥ 0 | null |" in reference()


def test_a_section_that_two_keys_share_is_described_once() -> None:
    assert "| `pools.<name>.slo.interactive.ttft_s` |" in reference()
    assert "`pools.<name>.slo.batch.ttft_s`" not in reference()
    assert "It has the keys of `pools.<name>.slo.interactive`. |" in reference()
    assert "Each has the keys of `gateway.tenants.<name>.limits`. |" in reference()


@pytest.mark.parametrize(("name", "reason"), [*RESERVED_ENGINE_ARGS.items(), *RESERVED_ENV.items()])
def test_a_reserved_name_stands_before_its_reason(name: str, reason: str) -> None:
    (row,) = {line for line in reference().splitlines() if f"`{name}`" in line and reason in line}
    assert row.endswith(f"| {reason} |")
