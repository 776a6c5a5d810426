"""The parsers and arguments of docs/recipes and docs/tool-calling.md are those of this vLLM."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from vllm.reasoning import ReasoningParserManager
from vllm.renderers.chat_utils import load_chat_template
from vllm.tool_parsers import ToolParserManager

from deployments.fleet.settings.engine_args import refused_by_vllm
from tests.shipped import RECIPES, ROOT, fleet_in
from tests.some import some

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PAGE = (ROOT / "docs" / "tool-calling.md").read_text()
TOOL_PARSERS = ToolParserManager.list_registered()
REASONING_PARSERS = ReasoningParserManager.list_registered()

each_recipe = pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_token")


def test_vllm_accepts_the_arguments_of_every_recipe(caplog: pytest.LogCaptureFixture) -> None:
    """As `antefix config check` asks it, but once. A warning would say that it did not answer."""
    asked = {
        f"{file.stem} {name}": pool.engine_args
        for file in some(RECIPES)
        for name, pool in fleet_in(file).pools.items()
    }
    assert refused_by_vllm(asked) == []
    assert not [record for record in caplog.records if "not checked" in record.getMessage()]


@each_recipe
def test_vllm_has_the_parsers_and_templates_of_a_recipe(file: Path) -> None:
    for pool in some(fleet_in(file).pools.values()):
        args = pool.engine_args
        assert args.get("tool_call_parser", TOOL_PARSERS[0]) in TOOL_PARSERS
        assert args.get("reasoning_parser", REASONING_PARSERS[0]) in REASONING_PARSERS
        assert ("enable_auto_tool_choice" in args) == ("tool_call_parser" in args)
        if (template := args.get("chat_template")) is not None:
            assert load_chat_template(str(template))


def test_vllm_has_the_parsers_of_the_page() -> None:
    """The columns of its table are: models, parsers of tools, parsers of thoughts."""
    (section,) = re.findall(
        r"^## Parsers by model\n.*?\| -- \|(?: -- \|)+\n(.*?)\n\n", PAGE, re.M | re.S
    )
    rows = [row.split("|")[2:4] for row in section.splitlines()]
    tools = {name for cell, _ in some(rows) for name in re.findall(r"`([\w-]+)`", cell)}
    reasoning = {name for _, cell in rows for name in re.findall(r"`([\w-]+)`", cell)}
    assert {"hermes", "openai"} <= tools and "qwen3" in reasoning
    assert tools <= set(TOOL_PARSERS)
    assert reasoning <= set(REASONING_PARSERS)


def test_vllm_has_the_templates_of_the_page() -> None:
    names = re.findall(r"`(template_\w+\.jinja)`", PAGE)
    assert all(load_chat_template(name) for name in some(names))
