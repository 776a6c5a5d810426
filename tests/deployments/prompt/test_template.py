"""The dialect that chat templates are written in."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from jinja2 import TemplateError

from deployments.prompt.template import Template
from deployments.prompt.unknowable import Unknowable

USER = {"role": "user", "content": "Hi"}


def rendered(text: str, *messages: dict[str, Any], **kwargs: Any) -> str:
    template = Template(text, {"bos_token": "<s>"})
    return template.render(messages or (USER,), None, None, True, kwargs)


def continued(text: str, *messages: dict[str, Any]) -> str:
    return Template(text, {}).render_open(messages, None, None, {})


def test_blocks_leave_no_blank_lines() -> None:
    assert rendered("  {% if true %}\nyes\n  {% endif %}\nend") == "yes\nend"


def test_json_keeps_other_scripts_and_html() -> None:
    assert rendered("{{ x | tojson }}", x={"a": "<é & 東>"}) == '{"a": "<é & 東>"}'


def test_json_is_indented_on_demand() -> None:
    assert rendered("{{ x | tojson(indent=2) }}", x=[1]) == "[\n  1\n]"


def test_loops_break_and_continue() -> None:
    loop = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    assert rendered(loop) == "023"


def test_a_generation_block_is_rendered_and_has_a_separate_scope() -> None:
    text = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert rendered(text) == "21"


def test_a_template_may_ask_for_the_date() -> None:
    assert rendered("{{ strftime_now('%Y') }}") == f"{datetime.now().year}"


def test_a_template_may_raise_an_error() -> None:
    with pytest.raises(TemplateError, match="not like this"):
        rendered("{{ raise_exception('not like this') }}")


def test_a_template_cannot_change_what_it_is_given() -> None:
    with pytest.raises(TemplateError):
        rendered("{{ messages[0].update({'role': 'system'}) }}")


def test_a_template_cannot_reach_into_python() -> None:
    with pytest.raises(TemplateError):
        rendered("{{ messages.__class__.__mro__[1].__subclasses__() }}")


def test_special_tokens_have_names_and_a_variable_may_replace_them() -> None:
    assert rendered("{{ bos_token }}") == "<s>"
    assert rendered("{{ bos_token }}", bos_token="!") == "!"


def test_a_template_can_test_for_undefined_variables() -> None:
    assert rendered("{{ tools is none }} {{ mood is defined }}") == "True False"


def test_a_continued_message_ends_with_its_content() -> None:
    text = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    assert continued(text, USER, {"role": "assistant", "content": "It is "}) == "<Hi><It is "


def test_a_template_that_strips_leaves_no_blank_at_the_end() -> None:
    text = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"
    assert continued(text, {"role": "assistant", "content": "It is "}) == "<It is"


def test_a_message_of_parts_continues_its_last_text() -> None:
    text = "{% for part in messages[0].content %}{{ part.text }}|{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert continued(text, {"role": "assistant", "content": parts}) == "a|b"
    assert parts[1] == {"type": "text", "text": "b"}


@pytest.mark.parametrize("text", ["{{ messages[0].role }}{# content #}", "{{ messages | length }}"])
def test_a_message_that_is_not_shown_cannot_be_continued(text: str) -> None:
    with pytest.raises(Unknowable):
        continued(text, USER)
