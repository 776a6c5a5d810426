"""Messages about values that do not fit a command-line flag, without argparse's vocabulary.

Every answer is a message and a remedy.
"""

import argparse
import re
from collections.abc import Mapping
from typing import Any

from common.section import did_you_mean


def misfit(action: argparse.Action, value: Any) -> tuple[str, str] | None:
    """Return the fault of a kind of value that argparse would misread rather than reject."""
    is_switch = isinstance(action, argparse.BooleanOptionalAction | argparse._StoreTrueAction)
    if is_switch and not isinstance(value, bool):
        return "neither true nor false", "Write one of the two"
    if isinstance(value, bool) and not is_switch and action.nargs != "?":
        return "takes a value, not true or false", "Write the value"
    if isinstance(value, list):
        if action.nargs in (None, "?"):
            return "takes one value, not a list", "Write one"
        if any(isinstance(item, str) and item.startswith("-") for item in value):
            return "contains a value that starts with -", "Remove the -"
    if isinstance(value, Mapping) and (action.type is str or action.nargs == "+"):
        return (
            ("takes a list", "Write a list") if action.nargs == "+" else ("not text", "Write text")
        )
    return None


_WHOLE = ("not a whole number", "Write one, such as 4096")
_KINDS = {
    "int": _WHOLE,
    "human_readable_int": _WHOLE,
    "human_readable_int_or_auto": _WHOLE,
    "float": ("not a number", "Write one, such as 0.9"),
    "loads": ("not valid JSON", "Write it as YAML below the key"),
}


def plain_words(action: argparse.Action, value: Any, said: str) -> tuple[str, str]:
    """Return argparse's complaint in plain words, and the remedy."""
    said = re.sub(r"^argument [^:]*: ", "", said)
    if action.choices is not None and "invalid choice" in said:
        return not_one_of([str(choice) for choice in action.choices if choice is not None], value)
    kind = re.match(r"invalid (\w+) value|.*converted to <(?:class|function) '?([\w.]+)", said)
    name = (kind[1] or kind[2]).rpartition(".")[2] if kind is not None else ""
    if name in _KINDS:
        return _KINDS[name]
    if action.dest == "lora_modules":
        return "not a LoRA adapter", "Write a list of {name: sql, path: /adapters/sql}"
    if inside := re.findall(r"\n(\S+)\n  (.+?) \[type=", said):
        broken = "; ".join(f"{key}: {complaint.lower()}" for key, complaint in inside)
        return broken, "See vllm serve --help=all"
    return one_line(said), "See vllm serve --help=all"


def not_one_of(choices: list[str], value: Any) -> tuple[str, str]:
    near = did_you_mean(str(value), choices)
    return "not a value of this flag", near or f"vLLM takes {', '.join(choices)}"


def one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
