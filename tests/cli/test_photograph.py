"""The pictures of commands in docs/images show what the commands print, and load nothing."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

import pytest

from tests.cli.photograph import IMAGES, PICTURES, ROOT, svg

SHOWN_ON = {"status": "docs/laptop.md", "bench": "docs/bench.md"}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_matches_the_current_output_of_its_command(name: str) -> None:
    kept = (IMAGES / f"terminal-{name}.svg").read_text()
    assert kept == svg(name), "python -m tests.cli.photograph writes it"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_loads_nothing_from_the_network(name: str) -> None:
    drawn = svg(name)
    assert "@font-face" not in drawn and "url(http" not in drawn and "href" not in drawn
    addresses = set(re.findall(r"https?://[\w.]+", html.unescape(drawn)))
    assert addresses <= {"http://www.w3.org", "https://www.textualize.io", "http://127.0.0.1"}


def test_a_picture_has_the_text_of_the_command() -> None:
    def words(name: str) -> str:
        texts = ElementTree.fromstring(svg(name)).iter(f"{SVG}text")
        return " ".join(" ".join(text.text or "" for text in texts).split())

    assert "TTFT SLO" in words("status") and "TTFT OF 512 TOKENS" in words("status")
    assert "goodput" in words("bench") and "end to end" in words("bench")


@pytest.mark.parametrize("name", PICTURES)
def test_each_picture_on_a_page_has_an_alternative_text(name: str) -> None:
    page = (ROOT / SHOWN_ON[name]).read_text()
    found = re.search(rf"!\[([^\]]+)\]\(images/terminal-{name}\.svg\)", page)
    assert found and len(found[1].split()) > 5
