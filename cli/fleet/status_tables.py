"""The tables of `antefix status`: the fleet, its models, and each pool with its replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Row = tuple[str, str]


@dataclass(frozen=True)
class ShownFleet:
    """Output of the command. `addresses` by name for `-o json`, `rows` for people; `answer` is the
    gateway's."""

    base_url: str
    addresses: Mapping[str, Any]
    rows: Sequence[Row]
    answer: Mapping[str, Any]


def render(found: ShownFleet, wide: bool = False) -> RenderableType:
    """Return the tables. `wide` adds the address and the data type of each replica."""
    answer = found.answer
    tokens = answer["reference_prompt_tokens"]
    head = (
        ("base URL", found.base_url),
        ("gateways", _counts(answer["gateways"])),
        *found.rows,
    )
    # a gateway of an older release reports none
    models = answer.get("models", {})
    tables: list[RenderableType] = [_settings(answer["fleet"], head)]
    tables.append(_models(models) if models else "")
    for name, pool in answer["pools"].items():
        tables.append(_settings(f"{name}: {pool['model']}", _of_pool(pool)))
        tables.append(_replicas(pool, tokens, wide))
    return Group(*tables)


def dtypes_in_words(*pools: Mapping[str, Any]) -> str:
    """Return the types in which the engines of `pools` compute; empty if none reports one."""
    replicas = [replica for pool in pools for replica in pool["replicas"]]
    return " and ".join(sorted({dtype for one in replicas if (dtype := one.get("dtype"))}))


def _table(title: str | None, header: bool) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        show_header=header,
        # narrow: everything fits in 80 columns
        box=box.SIMPLE_HEAD if header else None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _settings(title: str, rows: Iterable[Row]) -> Table:
    table = _table(title, header=False)
    table.add_column(style="dim", no_wrap=True, min_width=16)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _models(models: Mapping[str, Any]) -> Table:
    table = _table(None, header=True)
    for column in ("MODEL", "POOLS", "ALIASES"):
        table.add_column(column)
    for name, route in models.items():
        weights = route["pools"]
        pools = (f"{pool} {weight / sum(weights.values()):.0%}" for pool, weight in weights.items())
        table.add_row(name, ", ".join(pools), ", ".join(route["aliases"]))
    return table


def _replicas(pool: Mapping[str, Any], tokens: int, wide: bool) -> Table:
    table = _table(None, header=True)
    for column in ("REPLICA", "ROLE", "NODE"):
        table.add_column(column)
    for column in ("RUNNING", "WAITING", "KV USE", f"TTFT OF {tokens} TOKENS"):
        table.add_column(column, justify="right")
    for column in ("URL", "DTYPE") if wide else ():
        table.add_column(column)
    for replica in pool["replicas"]:
        more = (replica.get("url") or "?", replica.get("dtype") or "?") if wide else ()
        table.add_row(
            replica["replica"],
            replica["role"],
            replica["node_ip"] or "?",
            *_load(replica),
            *more,
        )
    return table


def _load(replica: Mapping[str, Any]) -> tuple[str, ...]:
    """Return requests that run and wait, KV use and TTFT."""
    if replica["running"] is None:  # unknown, or hidden from this key's tenant
        return ("?",) * 4
    return (
        str(replica["running"]),
        str(replica["waiting"]),
        f"{replica['kv_use']:.0%}",
        f"{replica['predicted_ttft_s']:.2f} s",
    )


def _of_pool(pool: Mapping[str, Any]) -> Iterator[Row]:
    """Yield its settings and state in the gateway that answered."""
    target = pool["target_replicas"]
    yield "replicas", f"{_counts(pool['states'])} of {target}" if target else "scaled to zero"
    if any(replica["role"] == "unknown" for replica in pool["replicas"]):
        yield "loads", "unknown: Redis does not answer"
    elif any(replica["running"] is None for replica in pool["replicas"]):
        yield "loads", "hidden: this key's tenant is not an operator"
    yield from _routing(pool)
    yield from _admission(pool["admission"])
    if dtypes := dtypes_in_words(pool):
        yield "data type", dtypes
    if known := [replica["speculation"] for replica in pool["replicas"] if replica["speculation"]]:
        yield "speculation", _speculation(known)


def _routing(pool: Mapping[str, Any]) -> Iterator[Row]:
    index = pool["index"]
    yield "policy", pool["policy"]
    if not index["prompts_known"]:
        yield "prefix index", "unused, prompts unknown"
    elif not index["answers"]:
        yield "prefix index", "no answer, placed by load"
    elif index["lookup_p50_ms"] is not None:
        yield "prefix index", f"{index['lookup_p50_ms']:.1f} ms"
    if index["ttft_prediction_error"] is not None:
        yield "TTFT prediction", f"{index['ttft_prediction_error']:.0%} off"


def _admission(admission: Mapping[str, Any]) -> Iterator[Row]:
    slo = [f"{name} {of['ttft_s']:g} s" for name, of in admission["slo"].items()]
    yield "TTFT SLO", ", ".join(slo) or "none"
    if admission["queued"]:
        oldest = admission["oldest_queued_s"]
        waited = "" if oldest is None else f", oldest {oldest:.0f} s"
        yield "queued", f"{admission['queued']}{waited}"
    if outage := admission.get("outage"):
        left = outage["up_in_s"]
        yield "outage", "no replica" if left is None else f"no replica, next in {left:.0f} s"
    if admission["held"]:
        yield "held", f"{admission['held']} until a replica is up"
    if admission["overflowing"]:
        yield "overflow", f"{admission['overflow_share']:.0%}"


def _speculation(known: Sequence[Mapping[str, Any]]) -> str:
    """Describe the speculation of the replicas that report it."""
    words = []
    if yields := [of["tokens_per_pass"] for of in known if of["tokens_per_pass"] is not None]:
        words.append(f"{fmean(yields):.1f} tokens per pass")
    if speedups := [of["speedup"] for of in known if of["speedup"] is not None]:
        words.append(f"{fmean(speedups):.2f} times the speed")
    if stopped := sum(not of["on"] for of in known):
        words.append(f"off on {stopped} of {len(known)}")
    return ", ".join(words) or "not measured yet"


def _counts(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"
