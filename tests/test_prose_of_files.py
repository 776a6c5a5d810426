"""What files other than pages and Python say is plain English too: comments of YAML, Dockerfiles
and chart templates, texts of the page at /antefix/, NOTES.txt, and the Makefile's help.

The rules are those of `docs/vale`. A string of three words or more is taken for a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from tests.prose import ROOT, alerts_of_texts, comments, files

STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
SHOWN_ATTRIBUTES = ("alt", "aria-label", "content", "placeholder", "title")


def messages(text: str, inserted: str) -> Iterator[str]:
    """Strings in double or backward quotes. `inserted`: a pattern of what stands for a value."""
    for either in STRING.findall(text):
        words = re.sub(inserted, "code", "".join(either))
        if len(words.split()) >= 3:
            yield words


def in_yaml(text: str) -> Iterator[str]:
    yield from comments(text)


def in_texts_of_yaml(text: str) -> Iterator[str]:
    """Comments, and the texts of an SLO file or the runbooks, without PromQL."""
    yield from comments(text)
    found = [yaml.safe_load(text)]
    for node in found:
        if isinstance(node, dict):
            found += [node[key] for key in node if key != "query"]
        elif isinstance(node, list):
            found += node
        elif isinstance(node, str) and len(node.split()) >= 3:
            yield re.sub(r"\{\{.*?\}\}|\$\w+", "code", node)


def in_makefile(text: str) -> Iterator[str]:
    """Comments, of which the help of targets is in the form `target: ## help`."""
    yield from comments(text)
    yield from re.findall(r"^[a-z-]+:.*?## (.*)$", text, re.M)


def in_script(text: str) -> Iterator[str]:
    """Comments and strings of the page's JavaScript."""
    for block in re.findall(r"(?:^[ \t]*//.*\n)+|[ \t]// .*$", text, re.M):
        yield re.sub(r"^[ \t]*// ?", "", block, flags=re.M)
    code = re.sub(r"^[ \t]*//.*$|[ \t]// .*$", "", text, flags=re.M)
    yield from messages(code, r"\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


def in_stylesheet(text: str) -> Iterator[str]:
    yield from re.findall(r"/\*(.*?)\*/", text, re.S)


class _Texts(HTMLParser):
    """Elements that are part of a sentence do not divide it."""

    INLINE = ("a", "code", "span", "time", "b", "em")

    def __init__(self) -> None:
        super().__init__()
        self.found = [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.INLINE:
            self.found.append("")
        self.found[:0] = [value for name, value in attrs if name in SHOWN_ATTRIBUTES and value]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.INLINE:
            self.found.append("")

    def handle_data(self, data: str) -> None:
        self.found[-1] += data

    def handle_comment(self, data: str) -> None:
        self.found.insert(0, data)


def in_html(text: str) -> Iterator[str]:
    parser = _Texts()
    parser.feed(text)
    yield from parser.found


def in_template(text: str) -> Iterator[str]:
    """Comments of both kinds, and messages, of one of the chart's templates."""
    yield from re.findall(r"/\*(.*?)\*/", text, re.S)
    rest = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    yield from comments(rest)
    for action in re.findall(r"\{\{(.*?)\}\}", rest, re.S):
        yield from messages(action, r"%[\w.-]+")


def in_notes(text: str) -> Iterator[str]:
    """What `helm install` prints; a value is one word. Commands are indented."""
    yield from in_template(text)
    shown = re.sub(r"\{\{-?/\*.*?\*/-?\}\}", "", text, flags=re.S)
    shown = re.sub(r"^\{\{-? ?(?:if|with|end|else|range|\$).*\}\}$", "", shown, flags=re.M)
    yield re.sub(r"^ +.*$", "", re.sub(r"\{\{.*?\}\}", "code", shown, flags=re.S), flags=re.M)


READERS: dict[str, Callable[[str], Iterator[str]]] = {
    ".github/**/*.yaml": in_yaml,
    "*.yaml": in_yaml,
    "Makefile": in_makefile,
    "benchmarks/**/*.yaml": in_yaml,
    "deployments/gateway/page/*.css": in_stylesheet,
    "deployments/gateway/page/*.html": in_html,
    "deployments/gateway/page/*.js": in_script,
    "docker/*.Dockerfile": in_yaml,
    "docs/recipes/*.yaml": in_yaml,
    "fleets/*.yaml": in_yaml,
    "helm/antefix/*.yaml": in_yaml,
    "helm/antefix/ci/*.yaml": in_yaml,
    "helm/antefix/values/**/*.yaml": in_yaml,
    "helm/antefix/templates/**/*.yaml": in_template,
    "helm/antefix/templates/**/*.tpl": in_template,
    "helm/antefix/templates/NOTES.txt": in_notes,
    "mkdocs.yml": in_yaml,
    "observability/*.yaml": in_texts_of_yaml,
    "pyproject.toml": in_yaml,
    "requirements/*.in": in_yaml,
    "weights/*.yaml": in_yaml,
}


def alerts_in(pattern: str) -> dict[str, list[str]]:
    reader = READERS[pattern]
    found = {file: alerts_of_texts(reader(file.read_text())) for file in files(pattern)}
    assert found, f"no file is named {pattern}"
    return {str(file.relative_to(ROOT)): faults for file, faults in found.items() if faults}


@pytest.mark.parametrize("pattern", READERS)
def test_the_prose_of_a_file_is_plain_english(pattern: str) -> None:
    assert not alerts_in(pattern)


ODD = "Nobody gets in."
JS, HTML, TEMPLATE = (
    "deployments/gateway/page/*.js",
    "deployments/gateway/page/*.html",
    "helm/antefix/templates/**/*.tpl",
)


@pytest.mark.parametrize(
    ("pattern", "text", "count"),
    [
        ("fleets/*.yaml", f"# {ODD}\nname: nobody  # {ODD}\n#\n#   nobody\n", 2),
        ("observability/*.yaml", f"# {ODD}\nmeans: >-\n  Nobody gets in.\nquery: nobody + 1\n", 2),
        ("Makefile", f"# {ODD}\nnobody: ## {ODD}\n\t@nobody\n", 2),
        (JS, f'// {ODD}\nf("nobody gets in", `nobody gets ${{nobody}}`, "nobody")\n', 3),
        ("deployments/gateway/page/*.css", f".nobody {{ }} /* {ODD} */", 1),
        (HTML, f'<p title="{ODD}" id="nobody">No<b>body</b> gets in</p>', 2),
        ("docker/*.Dockerfile", f"# {ODD}\nRUN nobody # {ODD}\n", 2),
        (TEMPLATE, f'{{{{/* {ODD} */}}}}\n# {ODD}\n{{{{ fail "nobody gets in" }}}} nobody\n', 3),
        ("helm/antefix/templates/NOTES.txt", f"{{{{ .nobody }}}} {ODD}\n\n  nobody gets in\n", 1),
    ],
)
def test_texts_are_read_and_code_is_not(pattern: str, text: str, count: int) -> None:
    assert len(alerts_of_texts(READERS[pattern](text))) == count


def test_a_file_is_read_by_its_folder() -> None:
    named = {Path(pattern).parts[0] for pattern in READERS}
    assert {"Makefile", "docker", "fleets", "helm", "observability", "deployments"} <= named
