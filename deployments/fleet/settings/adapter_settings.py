"""Settings for LoRA adapters that are loaded while a pool serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from common.section import Broken, Section
from deployments.fleet.settings.fleet_rules import engine_arg_name

SLOTS = 4


class AdapterSettings(Section):
    """Where adapters may come from. `engine_args` sets how many an engine has and their rank."""

    sources: Sequence[Annotated[str, Field(min_length=1)]] = Field(
        min_length=1,
        description="The places from which adapters may be loaded: absolute folders, beginnings of "
        "Hugging Face ids such as `acme`, or beginnings of object store URLs such as "
        "`s3://bucket/adapters`.",
    )


def with_slots(pool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pool's settings in which the engine takes adapters, if the pool does: vLLM has one
    slot by default, so that a second adapter would wait for the first."""
    given = pool.get("engine_args")
    if pool.get("adapters") is None or not isinstance(given, Mapping | None):
        return pool
    known = {engine_arg_name(key) for key in given or () if isinstance(key, str)}
    own = {"enable_lora": True, "max_loras": SLOTS}
    missing = {name: value for name, value in own.items() if name not in known}
    return {**pool, "engine_args": {**(given or {}), **missing}}


def broken_by_adapters(pool: Any) -> Iterator[Broken]:
    """Check that the engine can load adapters."""
    if pool.adapters is None:
        return
    args = {engine_arg_name(key): value for key, value in pool.engine_args.items()}
    if args.get("enable_lora") is not True:
        yield Broken(
            ("engine_args", "enable_lora"),
            args.get("enable_lora"),
            "the pool loads adapters",
            "Leave it out, or remove the pool's `adapters`",
        )
    if pool.pipeline_parallel > 1:
        yield Broken(
            ("adapters",),
            ...,
            "stages on other nodes cannot read a replica's copies of adapters",
            "Name the adapters in engine_args.lora_modules, on a volume of all nodes",
        )
    for number, source in enumerate(pool.adapters.sources):
        if source.startswith((".", "~")):
            yield Broken(
                ("adapters", "sources", number),
                source,
                "a folder must not depend on who starts the engine and where",
                "Write the whole path, which begins with /",
            )
