"""The reference page is made from the models and checked in."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from deployments.fleet.fleet import Fleet, Gateway, Pool, Redis, Resources
from deployments.fleet.fleet_reference import reference

PAGE = Path(__file__).parents[3] / "docs" / "fleet-file.md"


def fields_of(*sections: type[BaseModel]) -> Iterator[tuple[str, str | None]]:
    for section in sections:
        for name, field in section.model_fields.items():
            yield f"{section.__name__}.{name}", field.description


def test_the_page_checked_in_is_current() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written.rstrip() == reference().rstrip(), f"{PAGE.name} is stale: run make reference"


def test_every_key_is_described() -> None:
    undescribed = [
        name
        for name, description in fields_of(Fleet, Gateway, Redis, Pool, Resources)
        if not description
    ]
    assert undescribed == []


def test_a_number_is_told_with_its_bounds_and_default() -> None:
    row = "| `gateway.port` | whole number, at least 1, at most 65535 | `8000` |"
    assert row in reference()


def test_keys_of_a_pool_are_told_below_a_name_of_ones_own() -> None:
    assert "| `pools.<name>.resources.gpus` | number or null, at least 0 | null |" in reference()
