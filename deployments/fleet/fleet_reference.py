"""docs/fleet-file.md, generated from the models so that it stays up to date.

`python -m deployments.fleet.fleet_reference` prints it; `make reference` writes it.
"""

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from common.yaml_file import Fault
from deployments.fleet.fleet import Fleet
from deployments.fleet.settings.reserved import RESERVED_ENGINE_ARGS, RESERVED_ENV

_INTRODUCTION = """\
# The fleet file

<!-- Written by `make reference` from deployments/fleet/fleet.py. Change it there. -->

A fleet file is a YAML file that describes a fleet: the gateways, Redis and the pools of engines.
Pass its path to `antefix`, or the name of a built-in fleet file. For example, `laptop` stands for
`fleets/laptop.yaml`.

```yaml
name: small
pools:
  engine:
    model: embedded
```

- Unknown keys, duplicate keys and values of the wrong type are rejected.
- `null` is the same as omitting the key, unless the type includes `null`. For limits, prices,
  objectives and mappings, it means that there is none.
- Times are in seconds, sizes in bytes, and rates in tokens per second, unless stated otherwise. You
  choose each `<name>`.
- `${VARIABLE}` is replaced with the value of an environment variable, but only in `redis.url` and
  in the values of `env`. In the user and the password of a URL, the value is percent-encoded. Write
  `$${` for a literal `${`. Inside `{ }`, YAML requires quotes.
- Two pools must not serve a model or LoRA adapter with the same name.
- `overflow` must not form a cycle.
- Passwords in URLs are shown as `***`. The same applies to values of `env` whose name contains KEY,
  TOKEN, SECRET or PASSWORD.
"""

SCHEMA_OF_SCHEMAS = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> str:
    """Return the JSON Schema of fleet files, as text."""
    schema = {"$schema": SCHEMA_OF_SCHEMAS, **Fleet.model_json_schema(by_alias=True)}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


_ENGINE_ARGS = """\
## engine_args

The keys are the flags of `vllm serve` without the leading `--`. You can use `-` or `_` in them. A
switch is `true` or `false`, a flag that expects JSON is a mapping, and a flag that expects several
values is a list. vLLM's parser checks the flags when the file is read. It needs neither a GPU nor
the model. On a machine without vLLM, the engine checks the flags when it starts.

Without a `seed`, each replica has a random seed. With vLLM's default of 0, two replicas would
sample the same answer.

```yaml
engine_args:
  quantization: awq_marlin
  tensor_parallel_size: 4            # GPUs per replica: this times pipeline_parallel_size
  kv_cache_dtype: fp8
  enable_chunked_prefill: true
  enforce_eager: false               # false means with CUDA graphs
  enable_sleep_mode: true
  enable_lora: true
  lora_modules: [{name: sql, path: /adapters/sql}]
  speculative_config: {method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4}
  # a draft model:  {method: draft_model, model: <id>, num_speculative_tokens: 4}
  # EAGLE:          {method: eagle3, model: <id>, num_speculative_tokens: 3}
  # MTP:            {method: mtp, num_speculative_tokens: 1}
```

Antefix sets these flags itself, so it rejects them in a fleet file:
"""

_ENV = """\
## env

Antefix sets these variables itself, so it rejects them in a fleet file:
"""

_ERRORS = """\
## Errors

All problems of a file are reported at once, one per line:

```
{examples}
```
"""


def reference() -> str:
    """Return the whole page, as Markdown."""
    sections = [
        _INTRODUCTION,
        "## Keys\n",
        _table(("Key", "Type", "Default", "Meaning"), _rows(Fleet, "", {})),
        _ENGINE_ARGS,
        _table(("Flags", "What to do instead"), _by_reason(RESERVED_ENGINE_ARGS)),
        _ENV,
        _table(("Variables", "What to do instead"), _by_reason(RESERVED_ENV)),
        _ERRORS.format(examples="\n".join(fault.text("fleet.yaml") for fault in _EXAMPLES)),
    ]
    return "\n".join(sections)


_EXAMPLES = (
    Fault("gateway.port", "80000", "too high", "Write at most 65535", 4),
    Fault("pools.engine.replica", None, "unknown key", "Did you mean replicas?", 9),
)


def _rows(
    section: type[BaseModel], above: str, described: dict[type[BaseModel], str]
) -> Iterator[tuple[str, ...]]:
    """A section that several keys share is written out below the first, which `described` has."""
    for name, field in section.model_fields.items():
        path = f"{above}{name}"
        inner, is_mapping = _inner_section(field.annotation)
        first = described.get(inner) if inner else None
        whose = "Each" if is_mapping else "It"
        same = f" {whose} has the keys of `{first}`." if first else ""
        meaning = f"{field.description or ''}{same}"
        yield f"`{path}`", _type_of(field), _default_of(field, inner), meaning
        if inner is not None and first is None:
            described[inner] = path
            below = f"{path}.<name>." if is_mapping else f"{path}."
            yield from _rows(inner, below, described)


def _inner_section(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the section below a key, and whether the key maps names to such sections."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for argument in get_args(annotation):
        inner, _ = _inner_section(argument)
        if inner is not None:
            return inner, get_origin(annotation) is Mapping
    return None, False


_TYPE_NAMES: Mapping[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
}


def _type_of(field: FieldInfo) -> str:
    limits = [words for mark in field.metadata for words in _limit_in(mark)]
    kind = _kind_of(field.annotation)
    if not field.is_required() and field.default is None:
        kind = kind.removesuffix(" or null")
    return f"{kind} {' and '.join(limits)}".strip()


def _kind_of(annotation: Any) -> str:
    if hasattr(annotation, "__metadata__"):
        return _kind_of(get_args(annotation)[0])
    if get_origin(annotation) in (Mapping, Sequence):
        return "mapping" if get_origin(annotation) is Mapping else "list"
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_kind_of(argument) for argument in get_args(annotation))
    if annotation is ByteSize:
        return "size"
    if annotation is type(None):
        return "null"
    return _TYPE_NAMES.get(annotation, "mapping")


def _limit_in(mark: object) -> Iterator[str]:
    for attribute, words in (("ge", "≥"), ("gt", ">"), ("le", "≤")):
        limit = getattr(mark, attribute, None)
        if limit is not None:
            yield f"{words} {limit}"


def _default_of(field: FieldInfo, inner: type[BaseModel] | None) -> str:
    if field.is_required():
        return "required"
    if field.default == "" or (inner is not None and field.default is not None):
        return ""
    default = field.get_default(call_default_factory=True)
    if default is None:
        return "null"
    if isinstance(default, bool):
        return f"`{default}`".lower()
    if isinstance(default, tuple):
        return f"`[{', '.join(f'{item:g}' for item in default)}]`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _by_reason(reserved: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """One row for each reason, in the order of the first name that it holds for."""
    for reason in dict.fromkeys(reserved.values()):
        yield ", ".join(f"`{name}`" for name, why in reserved.items() if why == reason), reason


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [header, ("--",) * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    print(reference(), end="")
