"""`antefix status`: every replica of a fleet, as reported by one of its gateways.

For the fleet on this machine it also shows the programs that run with it. With `--base-url` it
reads any fleet's gateway, such as one on Kubernetes through a port-forward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from cli.chat import where
from cli.exit_codes import ExitCode
from cli.gateway_client import GatewayClient, GatewayError
from cli.local import cluster, monitoring
from cli.local.home import FleetState, Home
from cli.output import CommandError, answering, not_running, print_json

WATCH_SECONDS = 1.0


@dataclass(frozen=True)
class ShownFleet:
    """Output of the command. `addresses` by name for `--json`, `lines` for people; `answer` is the
    gateway's."""

    base_url: str
    addresses: Mapping[str, Any]
    lines: Sequence[str]
    answer: Mapping[str, Any]


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C.")
    ] = False,
    base_url: Annotated[
        str | None,
        typer.Option(help="Base URL of another fleet, such as http://127.0.0.1:8000/v1."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="API key. Visible to other users here; OPENAI_API_KEY is not."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.")
    ] = False,
) -> None:
    """Show the replicas: queues, KV use and predicted time to first token."""
    with answering(as_json):
        if watch and as_json:
            raise CommandError(
                "--watch and --json exclude each other",
                "drop one",
                ExitCode.USAGE,
            )
        if api_key is not None and base_url is None:
            raise CommandError(
                "--api-key is for another fleet", "pass its --base-url too", ExitCode.USAGE
            )

        def read() -> ShownFleet:
            return _read_here(Home()) if base_url is None else _read_at(base_url, api_key)

        if watch:
            _watch(read)
            return
        found = read()
        if as_json:
            print_json({"base_url": found.base_url, **found.addresses, **found.answer})
        else:
            Console().print(render(found))
        if idle_pools(found.answer):
            raise typer.Exit(ExitCode.DEGRADED)


def idle_pools(answer: Mapping[str, Any]) -> list[str]:
    """Return the pools that should run replicas but have none."""
    return [
        name
        for name, pool in answer["pools"].items()
        if pool["target_replicas"] and not pool["states"].get("RUNNING")
    ]


def dtypes_in_words(*pools: Mapping[str, Any]) -> str:
    """Return the types in which the engines of `pools` compute; empty if none reports one."""
    replicas = [replica for pool in pools for replica in pool["replicas"]]
    return " and ".join(sorted({dtype for one in replicas if (dtype := one.get("dtype"))}))


def render(found: ShownFleet) -> RenderableType:
    answer = found.answer
    tokens = answer["reference_prompt_tokens"]
    tables = [_table(name, pool, tokens) for name, pool in answer["pools"].items()]
    gateways = _in_words(answer["gateways"])
    head = f"{answer['fleet']} at {found.base_url}, gateways: {gateways}"
    # a gateway of an older release reports none
    routes = (_route_in_words(name, of) for name, of in answer.get("models", {}).items())
    return Group(head, *routes, *found.lines, *tables)


def _route_in_words(name: str, route: Mapping[str, Any]) -> str:
    weights = route["pools"]
    pools = (f"{pool} {weight / sum(weights.values()):.0%}" for pool, weight in weights.items())
    aliases = f", also called {', '.join(route['aliases'])}" if route["aliases"] else ""
    return f"model {name}: {', '.join(pools)}{aliases}"


def _addresses(state: FleetState) -> dict[str, Any]:
    urls = {"prometheus": state.prometheus_url, "alertmanager": state.alertmanager_url}
    running = monitoring.running(state.run_id) if any(urls.values()) else set()
    beside = {
        name: {"url": url, "running": name in running} if url else None
        for name, url in urls.items()
    }
    return {"page_url": state.page_url, "metrics_url": state.metrics_url or None, **beside}


def _addresses_in_words(state: FleetState) -> Iterator[str]:
    addresses = _addresses(state)
    yield f"page {addresses['page_url']}"
    if url := addresses["metrics_url"]:
        yield f"metrics {url}"
    for name in ("prometheus", "alertmanager"):
        if server := addresses[name]:
            again = f"antefix up {state.fleet_file} --with-prometheus starts it again"
            yield f"{name} {server['url']}" if server["running"] else f"{name} died; {again}"


def _table(name: str, pool: Mapping[str, Any], tokens: int) -> Table:
    table = Table(
        title=f"{name}: {pool['model']}, {_replicas_in_words(pool)}",
        title_justify="left",
        title_style="bold",
        caption="; ".join(_of_pool_in_words(pool)),
        caption_justify="left",
        # narrow: everything fits in 80 columns
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in ("replica", "role", "node"):
        table.add_column(column)
    for column in ("running", "waiting", "KV use", f"TTFT of {tokens} tokens"):
        table.add_column(column, justify="right")
    for replica in pool["replicas"]:
        table.add_row(
            replica["replica"],
            replica["role"],
            replica["node_ip"] or "?",
            *_load_in_words(replica),
        )
    return table


def _load_in_words(replica: Mapping[str, Any]) -> tuple[str, ...]:
    """Return requests that run and wait, KV use and TTFT."""
    if replica["running"] is None:  # unknown, or hidden from this key's tenant
        return ("?",) * 4
    return (
        str(replica["running"]),
        str(replica["waiting"]),
        f"{replica['kv_use']:.0%}",
        f"{replica['predicted_ttft_s']:.2f} s",
    )


def _of_pool_in_words(pool: Mapping[str, Any]) -> Iterator[str]:
    if any(replica["role"] == "unknown" for replica in pool["replicas"]):
        yield "Redis does not answer: replicas serve, but their load is unknown"
    elif any(replica["running"] is None for replica in pool["replicas"]):
        yield "only operators see loads, and this key's tenant is not one"
    yield _routing_in_words(pool)
    yield _admission_in_words(pool)
    if dtypes := dtypes_in_words(pool):
        yield f"computes in {dtypes}"
    if known := [replica["speculation"] for replica in pool["replicas"] if replica["speculation"]]:
        yield _speculation_in_words(known)


def _speculation_in_words(known: Sequence[Mapping[str, Any]]) -> str:
    """Describe the speculation of the replicas that report it."""
    words = []
    if yields := [of["tokens_per_pass"] for of in known if of["tokens_per_pass"] is not None]:
        words.append(f"{fmean(yields):.1f} tokens a pass")
    if speedups := [of["speedup"] for of in known if of["speedup"] is not None]:
        words.append(f"{fmean(speedups):.2f} times the speed without it")
    if stopped := sum(not of["on"] for of in known):
        words.append(f"switched off on {stopped} of {len(known)}")
    return f"speculation: {', '.join(words) or 'not measured yet'}"


def _routing_in_words(pool: Mapping[str, Any]) -> str:
    """Describe this pool's routing in the gateway that answered."""
    index = pool["index"]
    words = [f"policy {pool['policy']}"]
    if not index["prompts_known"]:
        words.append("prompts not known here: placed by load")
    elif not index["answers"]:
        words.append("prefix index does not answer: placed by load")
    elif index["lookup_p50_ms"] is not None:
        words.append(f"prefix index {index['lookup_p50_ms']:.1f} ms")
    if index["ttft_prediction_error"] is not None:
        words.append(f"TTFT predictions off by {index['ttft_prediction_error']:.0%}")
    return ", ".join(words)


def _replicas_in_words(pool: Mapping[str, Any]) -> str:
    target = pool["target_replicas"]
    if not target:
        return "scaled to zero: the next request waits for a replica to start"
    return f"{_in_words(pool['states'])} of {target}"


def _admission_in_words(pool: Mapping[str, Any]) -> str:
    """Describe this pool's admission in the gateway that answered."""
    admission = pool["admission"]
    promised = [
        f"{of['ttft_s']:g} s to the first token ({name})" for name, of in admission["slo"].items()
    ]
    words = [f"SLO {', '.join(promised)}" if promised else "no SLO"]
    if admission["waiting"]:
        oldest = admission["oldest_wait_s"]
        at_most = "" if oldest is None else f", {oldest:.0f} s at most"
        words.append(f"{admission['waiting']} waiting{at_most}")
    if outage := admission.get("outage"):
        left = outage["up_in_s"]
        soon = "" if left is None else f", the next is expected in {left:.0f} s"
        words.append(f"no replica is up{soon}")
    if admission["held"]:
        words.append(f"{admission['held']} held until a replica is up")
    if admission["overflowing"]:
        words.append(f"overflowing {admission['overflow_share']:.0%}")
    return ", ".join(words)


def _in_words(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"


def _watch(read: Callable[[], ShownFleet]) -> None:
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            live.update(render(read()), refresh=True)
            time.sleep(WATCH_SECONDS)


def _read_here(home: Home) -> ShownFleet:
    state = home.state()
    if state is None:
        raise not_running("for another fleet pass --base-url")
    if not cluster.is_alive(state):
        raise CommandError(
            "the fleet crashed: its Ray does not run",
            "antefix up starts it again, antefix down removes it",
            ExitCode.NOT_RUNNING,
        )
    try:
        answer = GatewayClient.of(state, home.keys()).status()
    except GatewayError as error:
        remedy = error.remedy if state.ready else "the fleet is still starting; try again"
        raise CommandError(error.message, remedy, ExitCode.DEGRADED) from error
    return ShownFleet(state.base_url, _addresses(state), list(_addresses_in_words(state)), answer)


def _read_at(base_url: str, api_key: str | None) -> ShownFleet:
    url, key, _ = where(base_url, api_key)
    try:
        answer = GatewayClient(url, key).status()
    except GatewayError as error:
        raise CommandError(error.message, error.remedy, ExitCode.DEGRADED) from error
    page = f"{url.rstrip('/').removesuffix('/v1')}/antefix/"
    return ShownFleet(url, {"page_url": page}, [f"page {page}"], answer)
