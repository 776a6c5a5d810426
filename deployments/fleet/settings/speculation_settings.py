"""Settings of a pool's speculative decoding, in addition to vLLM's `speculative_config`."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from common.section import Broken, Section
from deployments.fleet.settings.fleet_rules import engine_arg_name
from weights.speculation.speculation_rule import WhenSlower

# vLLM's flags for it; the others are shorthands for keys of the first.
_FLAGS = ("speculative_config", "spec_method", "spec_model")


class SpeculationSettings(Section):
    """How the engines speculate. `engine_args.speculative_config` sets the method."""

    # not `off`, because YAML reads that as false
    when_slower: WhenSlower = Field(
        "keep",
        description="What to do at batch sizes where speculation is measured to be slower. `keep` "
        "leaves it on. `stop` switches it off until it is faster again. Metrics show the result "
        "either way.",
    )


def broken_by_speculation(
    speculation: SpeculationSettings | None, engine_args: Mapping[str, Any]
) -> Iterator[Broken]:
    """Check that there is a speculative_config if speculation is set."""
    given = {engine_arg_name(key) for key, value in engine_args.items() if value is not None}
    if speculation is not None and given.isdisjoint(_FLAGS):
        yield Broken(
            ("speculation",),
            ...,
            "the engine does not speculate",
            "Add engine_args.speculative_config, or leave it out",
        )
