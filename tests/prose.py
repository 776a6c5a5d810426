"""The rules of docs/vale, for those who have no Vale, and what no test applies them to.

A rule is a file in Vale's format, of the kinds `existence`, `substitution` and `occurrence`. Code,
link targets, anchors of former headings, comments of pages and what tables separate are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
RULES = {
    file.stem: yaml.safe_load(file.read_text())
    for file in sorted((ROOT / "docs" / "vale" / "Antefix").glob("*.yml"))
}
# Files that no test of prose reads, with the reason.
UNREAD_FILES = {
    "benchmarks/*.md": "templates of pages in docs/benchmarks, which are read",
    "helm/antefix/files/*": "generated from observability/, which is read",
    "helm/antefix/values.schema.json": "generated from the chart's comments, which are read",
}
# Texts inside the files that are read, as patterns, with the reason.
UNREAD_TEXTS = {
    r"redis\.call|\blocal \w": "Lua",
    r"</": "HTML, whose text is read in the page's files",
    r"A river begins": "the prompt of `antefix prove-resume`",
    r"time year people|Tell me of the harbour": "words of generated prompts",
    r"\{ODD\}": "the examples of tests/test_prose_of_files.py",
    r"^\.\.\.": "the arguments of a script for Redis",
}
# Parts of texts that stand for code, with the reason. Each counts as one word.
CODE = {
    r"``[^`]*``": "reStructuredText's code",
    r"en-us": "a part of an address",
    r"benchmarks\.soak(?:\.\w+)*|\bmake soak\b": "a module, and a target of the Makefile",
    r"[\w.-]+(?:/[\w.*-]+)*/[\w*-]+\.\w+": "a path",
}


def is_read(file: Path) -> bool:
    name = str(file.relative_to(ROOT))
    return not any(fnmatch(name, pattern) for pattern in UNREAD_FILES)


def files(*patterns: str) -> list[Path]:
    """Return the files that are read, in order."""
    found = sorted({file for pattern in patterns for file in ROOT.glob(pattern)})
    return [file for file in found if is_read(file)]


def prose(text: str) -> str:
    """Return the words of a Markdown page; each code span is one word."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r'<!--.*?-->|<a id="[^"]*"></a>', "", text, flags=re.S)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text, flags=re.S)
    return re.sub(r"[*_]{1,2}([^*_\n]+)[*_]{1,2}", r"\1", text)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of paragraphs, items of lists, headings and the cells of tables."""
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.|#+) |\||\n(?=\|)", prose(text), flags=re.M):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(block.split()))


def tokens_of(rule: dict[str, Any]) -> list[str]:
    return list(rule.get("tokens") or rule["swap"])


def alerts(text: str) -> list[str]:
    """Return the alerts, each with the rule's name."""
    found = []
    for name, rule in RULES.items():
        flags = re.I if rule.get("ignorecase") else 0
        if rule["extends"] == "occurrence":
            word = re.compile(rule["token"])
            found += [
                f"{name}: {sentence}"
                for sentence in sentences(text)
                if len(word.findall(sentence)) > rule["max"]
            ]
            continue
        any_of = re.compile(rf"\b(?:{'|'.join(tokens_of(rule))})(?!\w)", flags)
        found += [
            f"{name}: {match[0]!r} in {sentence}"
            for sentence in sentences(text)
            for match in any_of.finditer(sentence)
        ]
    return found


def alerts_of_texts(texts: Iterable[str]) -> list[str]:
    """Return the alerts of comments, messages and similar texts."""
    unread, code = re.compile("|".join(UNREAD_TEXTS)), re.compile("|".join(CODE))
    return [
        alert
        for text in texts
        if not unread.search(text)
        for alert in alerts(code.sub("code", text))
    ]


def comments(text: str) -> Iterator[str]:
    """Yield the comments of a file, which begin with #; lines that follow each other are one.

    Each description of a Helm value (`# --`) is a paragraph. Commands are indented.
    """
    for block in re.findall(r"(?:^[ \t]*#(?!!).*\n)+|[ \t]# .*$", text, re.M):
        plain = re.sub(r"^[ \t]*#+ ?(?:   ?.*)?", "", block, flags=re.M)
        yield re.sub(r"^(?:-- |@\w+ -- )", "\n", plain, flags=re.M)
