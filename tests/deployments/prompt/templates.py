"""Chat templates that use what model authors use; none is a model's own."""

from __future__ import annotations

# ChatML with tools, their calls and results, as JSON and field by field.
TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{- tool | tojson }}
        {{- '\\n' + tool.function.name + ' takes ' }}
        {%- for name, how in (tool.function.parameters or {}).get('properties', {}).items() %}
            {{- name }}: {{ how.type | default('anything') }}{{ ', ' if not loop.last }}
        {%- endfor %}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' + call.id }}
            {{- call | tojson(indent=2) }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response ' ~ message.tool_call_id ~ '>\\n' + message.content }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# A date, a macro, a refusal, and JSON of everything it was given.
DATED = """\
{{ bos_token }}
{%- macro header(role, name) -%}
    <|{{ role }}{% if name %} {{ name }}{% endif %}|>
{% endmacro %}
{%- set today = date_string if date_string is defined else strftime_now('%d %b %Y') %}
{{ header('system') }}Today: {{ today }}
{% for message in messages %}
    {% if message['role'] not in ('system', 'user', 'assistant', 'tool') %}
        {{ raise_exception('no role ' + message['role']) }}
    {% endif %}
    {% if message['role'] == 'user' and message['content'] == 'refuse me' %}
        {{ raise_exception('refused') }}
    {% endif %}
{{ header(message['role'], message.name) }}{{ message['content'] | trim }}{{ eos_token }}
{{ message | tojson }}
{% endfor %}
{% if tools is not none %}{{ tools | tojson(indent=4) }}{% endif %}
{% if add_generation_prompt %}{{ header('assistant') }}{% endif %}
"""

# Reasoning: shown for the last answer only, opened or closed by switches, with loop controls.
THINKING = """\
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if message.role == 'user' %}{%- set ns.last_user = index %}{%- break %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{%- continue %}{%- endif %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' }}
    {%- if message.reasoning_content and loop.index0 > ns.last_user %}
        {{- '<think>\\n' ~ message.reasoning_content.strip('\\n') ~ '\\n</think>\\n\\n' }}
        {{- message.reasoning | length }}
    {%- endif %}
    {{- content.lstrip('\\n') ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- elif enable_thinking is defined %}{{- '<think>\\n' }}
    {%- endif %}
    {%- if reasoning_effort %}{{- 'effort: ' ~ reasoning_effort ~ '\\n' }}{%- endif %}
    {%- if mood is defined %}{{- 'mood: ' ~ mood | tojson ~ '\\n' }}{%- endif %}
{%- endif %}
"""

# Content in parts, and a separate developer role.
PARTS = """\
{% for message in messages %}
    {% if message['role'] == 'developer' %}[DEVELOPER{{ message | tojson }}]{% endif %}
    {{ '<|im_start|>' + message['role'] }}
    {% if message['content'] is string %}
    {{ message['content'] }}
    {% else %}
        {% for part in message['content'] %}
            {% if part['type'] == 'text' %}
    {{ part['text'] }}{{ part.cache_control | default('') }}
            {% endif %}
        {% endfor %}
    {% endif %}
<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

# What was said is marked for training, and the mark is a separate scope.
MARKED = """\
{%- for message in messages %}
    {%- set kept = 'outside' %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
            {%- set kept = 'inside' %}
            {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- kept + '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# Retrieval, with variables that the server has defaults for.
DOCUMENTS = """\
{%- for document in documents or [] %}
    {{- '<doc ' ~ loop.index ~ '>' ~ document.title ~ ': ' ~ document['text'] ~ '</doc>\\n' }}
{%- endfor %}
{{- documents | tojson }}
{%- if not style %}{%- set style = 'plain' %}{%- endif %}
{{- 'style=' ~ style ~ ' eos=' ~ eos_token ~ ' pad=' ~ pad_token ~ '\\n' }}
{%- for message in messages %}
    {{- message.role ~ ': ' ~ message.content ~ '\\n' }}
{%- endfor %}
"""

# Drops the last message's end, shows content twice, and writes it as JSON.
AWKWARD = """\
{%- for message in messages -%}
{{ message.content | upper if message.role == 'system' else message.content.strip() }}
{{ message.content | tojson }} {{ message.content }}|
{%- endfor -%}
"""

BROKEN = "{% for message in messages %}{{ message.content }}"
