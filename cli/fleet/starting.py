"""The steps of `antefix up`. If one fails, everything that they started is stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import secrets
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cli.common.exit_codes import ExitCode
from cli.common.gateway_client import FIRST_QUESTION, GatewayClient, GatewayError
from cli.common.output import CommandError, note
from cli.common.progress import ProgressStep, Steps
from cli.local import cluster, monitoring
from cli.local.home import FleetState, Home
from cli.local.ports import ANY_ADDRESS, LOOPBACK, held, is_free
from common.errors import Problem
from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import check_fleet
from deployments.models.model import EMBEDDED, resolve_model


@dataclass(frozen=True)
class Wanted:
    """The request of the command line.

    `digest` changes with every value of the fleet file. `given`: host and port of the command line,
    which override the file; None if not given. `programs`: those of the requested Prometheus, if
    any.
    """

    name: str
    fleet: Fleet
    digest: str
    host: str
    port: int
    address: str | None
    programs: monitoring.Programs | None
    given: tuple[str | None, int | None] = (None, None)


@dataclass(frozen=True)
class Started:
    """A started fleet. `answer` is None if the fleet was already running."""

    state: FleetState
    answer: str | None


def wanted(
    fleet_file: str,
    port: int | None,
    address: str | None,
    with_prometheus: bool = False,
    *,
    host: str | None = None,
) -> Wanted:
    """Return the request. Raises FleetError, or Problem for conflicting options or missing
    programs."""
    checked = check_fleet(fleet_file)
    for line in checked.lines():
        note(line)
    fleet = checked.fleet
    if with_prometheus and address is not None:
        raise CommandError(
            f"--with-prometheus monitors the local Ray cluster only, and {address} is another Ray "
            "cluster, whose nodes it may not reach",
            f"remove it, and let the cluster's Prometheus scrape port {fleet.metrics.port} of "
            "every node (set metrics.host in the fleet file)",
            ExitCode.USAGE,
        )
    if address is not None and fleet.redis.url is None:
        raise Problem(
            f"with --address {address} the fleet may span machines, but the embedded Redis "
            "listens on this machine only",
            "set redis.url in the fleet file",
        )
    said = json.dumps([fleet.model_dump(mode="json"), address], sort_keys=True)
    digest = hashlib.sha256(said.encode()).hexdigest()
    return Wanted(
        fleet_file,
        fleet,
        digest,
        fleet.gateway.host if host is None else host,
        fleet.gateway.port if port is None else port,
        address,
        monitoring.find_programs() if with_prometheus else None,
        given=(host, port),
    )


def start(home: Home, wanted: Wanted) -> Started:
    """Start the fleet and return it. The caller must hold the home's lock."""
    recorded = home.state()
    if recorded is not None:
        if is_running(home, recorded):
            return Started(_beside(home, _same_or_refused(recorded, wanted), wanted), None)
        note("cleaning up after a fleet that crashed")
        _clean_up(home, recorded)
    # The ports are reserved until gateways listen there.
    with contextlib.ExitStack() as ports:
        state = _new_state(wanted, ports)
        home.save_state(state)
        try:
            return _start(home, state, listening_on(wanted.fleet, state), wanted.programs)
        except BaseException:
            _clean_up(home, home.state() or state)
            raise


def is_running(home: Home, state: FleetState) -> bool:
    """Return whether its gateways answer."""
    if not state.ready or not cluster.is_alive(state):
        return False
    try:
        GatewayClient.of(state, home.keys()).status()
    except GatewayError as error:
        return error.status != 0
    return True


def _same_or_refused(running: FleetState, wanted: Wanted) -> FleetState:
    if running.fleet_digest == wanted.digest:
        host, port = wanted.given
        if host not in (None, running.host) or port not in (None, 0, running.port):
            note(
                f"it keeps listening on port {running.port} of {running.host}; to"
                " change that, run antefix down, then antefix up"
            )
        return running
    raise CommandError(
        f"another fleet ({running.fleet_file}) is running at {running.base_url}",
        f"apply this file with antefix update {wanted.name}, stop the other fleet with antefix "
        "down, or set ANTEFIX_HOME to another folder to run both",
        ExitCode.ALREADY_RUNNING,
    )


def _new_state(wanted: Wanted, ports: contextlib.ExitStack) -> FleetState:
    fleet, host = wanted.fleet, wanted.host
    port = _port_of_gateways(host, wanted.port, ports)
    here = wanted.address.rpartition(":")[0] if wanted.address else LOOPBACK
    return FleetState(
        run_id=secrets.token_hex(16),
        fleet_file=wanted.name,
        fleet_digest=wanted.digest,
        host=host,
        host_given=wanted.given[0] is not None,
        port=port,
        base_url=f"http://{_reachable(host, here)}:{port}/v1",
        model=next(iter(fleet.pools.values())).served_model_name,
        drain_timeout_s=fleet.gateway.drain_timeout_s,
        started_at=time.time(),
        ray_address=wanted.address or "",
        own_ray=wanted.address is None,
        redis_url=fleet.redis.url or "",
        metrics_url="" if wanted.address else _metrics_url(wanted, port, ports),
    )


def _reachable(host: str, here: str) -> str:
    """Return a host to connect to, for a URL, from an address to listen on."""
    reachable = here if host in ANY_ADDRESS else host
    return f"[{reachable}]" if ":" in reachable else reachable


def _port_of_gateways(host: str, port: int, ports: contextlib.ExitStack) -> int:
    try:
        holder = ports.enter_context(held(host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandError(
                f"port {port} of {host} is taken",
                "choose another: gateway.port in the fleet file, or --port (0 picks a free one)",
                ExitCode.PORT_TAKEN,
            ) from error
        raise Problem(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            "correct gateway.host or --host, gateway.port or --port",
        ) from error
    return int(holder.getsockname()[1])


def _metrics_url(wanted: Wanted, gateway_port: int, ports: contextlib.ExitStack) -> str:
    """Return the URL of this machine's metrics. Raises Problem."""
    host, usual = wanted.fleet.metrics.host, wanted.fleet.metrics.port
    try:
        kept = bool(wanted.port) and usual != gateway_port and is_free(host, usual)
        holder = ports.enter_context(held(host, usual if kept else 0))
    except OSError as error:
        raise Problem(
            f"cannot listen on {host}:{usual}: {error.strerror or error}",
            "correct metrics.host or metrics.port",
        ) from error
    port = holder.getsockname()[1]
    if wanted.port and not kept:
        note(f"metrics are on port {port}, because metrics.port {usual} is taken")
    return f"http://{_reachable(host, LOOPBACK)}:{port}/metrics"


def listening_on(fleet: Fleet, state: FleetState) -> Fleet:
    """Return the fleet with its current address and ports."""
    given = {"host": state.host} if state.host_given else {}
    gateway = fleet.gateway.model_copy(update={**given, "port": state.port})
    fleet = fleet.model_copy(update={"gateway": gateway})
    if not state.metrics_url:
        return fleet
    metrics = fleet.metrics.model_copy(update={"port": urlsplit(state.metrics_url).port})
    return fleet.model_copy(update={"metrics": metrics})


def _beside(home: Home, state: FleetState, wanted: Wanted) -> FleetState:
    """Start Prometheus and Alertmanager for the running fleet, if they are requested."""
    if wanted.programs is None or len(monitoring.running(state.run_id)) == 2:
        return state
    with Steps() as steps, steps.step("Prometheus"):
        return cluster.start_monitoring(home, state, wanted.programs)


def _start(
    home: Home, state: FleetState, fleet: Fleet, programs: monitoring.Programs | None
) -> Started:
    with Steps() as steps:
        if state.own_ray:
            fleet = with_models_here(fleet, steps)
            with steps.step("Ray"):
                state = cluster.start_ray(home, state, fleet)
        if not state.redis_url:
            with steps.step("Redis"):
                state = cluster.start_redis(home, state)
        if programs is not None:
            # Before the engines, so that an obstacle is reported before they load.
            with steps.step("Prometheus"):
                state = cluster.start_monitoring(home, state, programs)
        engines = _EngineSteps(steps, fleet)
        try:
            state = cluster.deploy(home, state, fleet, home.keys(), engines.show)
        except cluster.AlreadyDeployed as error:
            raise CommandError(error.message, error.remedy, ExitCode.ALREADY_RUNNING) from error
        engines.done()
        with steps.step("First request"):
            client = GatewayClient.of(state, home.keys())
            client.wait_until_ready()
            answer = client.ask(state.model, FIRST_QUESTION, fleet.gateway.request_timeout_s)
    state = dataclasses.replace(state, ready=True)
    home.save_state(state)
    return Started(state, answer)


def with_models_here(fleet: Fleet, steps: Steps) -> Fleet:
    """Create the embedded model, and make folders absolute: a replica has another working
    directory.
    """
    pools = dict(fleet.pools)
    for model in dict.fromkeys(pool.model for pool in fleet.pools.values()):
        with steps.step(f"Model {model}") as step:
            resolved = resolve_model(model, step.show)
        for name, pool in fleet.pools.items():
            # A damaged copy of the embedded model is repaired when it is resolved, so its name
            # stays.
            if pool.model == model != EMBEDDED:
                pools[name] = pool.model_copy(update={"model": resolved})
    return fleet.model_copy(update={"pools": pools})


class _EngineSteps:
    """A bar per pool, from the moment Ray Serve is reached."""

    def __init__(self, steps: Steps, fleet: Fleet) -> None:
        self._serve: ProgressStep | None = steps.open("Ray Serve")
        self._steps = steps
        self._bars: dict[str, ProgressStep] = {}
        self._ready: set[str] = set()

    def show(self, pools: dict[str, Any]) -> None:
        if self._serve is not None:
            self._serve.done()
            self._serve = None
        for name, pool in pools.items():
            bar = self._bars.get(name) or self._bars.setdefault(
                name, self._steps.open(f"Pool {name}")
            )
            running, target = pool["running"], pool["target"]
            if running >= target and name not in self._ready:
                self._ready.add(name)
                bar.done()
            elif name not in self._ready:
                loaded = f"{running} of {target} engines loaded"
                bar.show(running / target, "; ".join(filter(None, (loaded, pool["delay"]))))

    def done(self) -> None:
        for name in self._bars.keys() - self._ready:
            self._bars[name].done()


def _clean_up(home: Home, state: FleetState) -> None:
    """End what a failed run left, without draining."""
    if state.deployed and not state.own_ray:
        try:
            cluster.remove(home, state)
        except Problem as error:
            note(f"failed to remove the fleet from {state.ray_address}: {error.message}")
    cluster.stop(home, state)
