"""A real gateway without Ray that may follow a fixed rule.

    python -m benchmarks.tiers.ruled_gateway

Takes a line of JSON as `benchmarks.harness.fleets.lone_gateway` does. `rule_file` in it has the
rule for all requests from now on, as JSON:

    null      as Antefix ships
    NUMBER    a replica loads a prefix from its tiers if it has at least this number of tokens
    "never"   a replica computes
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import uvloop

from benchmarks.harness.fleets import lone_gateway
from deployments.gateway.attempt import cached_prompt
from deployments.wire.headers import NO_TIERS
from router.choice.policies import Candidate

Rule = int | str | None


def limit(rule: Rule, chosen: Candidate | None) -> str:
    """Return the value of KV_TIERS_HEADER by a rule, whatever the predicted cost of loads."""
    found = 0 if chosen is None else chosen.host_tokens + chosen.disk_tokens
    loads = isinstance(rule, int) and found >= rule
    return "" if loads or not found else NO_TIERS


def follow(rule_file: Path) -> None:
    """Let the gateway of this process follow the rule of a file."""
    shipped = cached_prompt._loads_from

    def ruled(chosen: Candidate | None) -> str:
        rule: Rule = json.loads(rule_file.read_text())
        return shipped(chosen) if rule is None else limit(rule, chosen)

    cached_prompt._loads_from = ruled


if __name__ == "__main__":
    to_the_benchmark = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.stdin.readline())
    follow(Path(asked.pop("rule_file")))
    uvloop.run(lone_gateway.serve(asked, to_the_benchmark))
