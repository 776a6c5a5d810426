"""Two preloaded processes, from which a pool's next engine on this node starts.

Ray starts a worker process when an actor needs it. A replica of a pool with `prestart` requests one
with the same environment from its node's raylet before that. In it Ray runs `warm_up`, before any
actor: it imports all modules of a replica, and starts the process of an engine, which imports vLLM
as well (`core_process`). Ray gives the worker to the next replica with that environment on this
node, and another is requested.

    <temporary folder>/antefix-<uid>/prestarts/<Ray node>-<environment>/
        asked    the environment for an engine's process; the process that removes this file waits
        wanted   touched by the replicas: a waiting process that is no longer wanted ends
        waits    locked by the waiting process

It uses memory, which it releases if little is left, but no GPU. The waiting process ends with its
raylet, if it is no longer wanted, and if its imported files have changed on the disk. If any step
fails, an engine starts the ordinary way. Source: Ray 2.60, whose memory monitor never ends an idle
worker of less than 1 GiB, but would end an engine.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

import ray
from ray._common.utils import get_system_memory
from ray._private.utils import get_used_memory
from ray._private.worker import global_worker

from common.loops import forever
from common.private_folder import made_private, user_folder
from deployments.engine.vllm import core_process

logger = logging.getLogger("ray.serve")

# Ray's variable with the code that a worker process runs before it gets any work.
HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
KEY = "ANTEFIX_PRESTART"
# On shared cores, gateways have priority: they have little work, and every token waits for it.
NICENESS = 5
# All imports of a replica. By name, because the first of them imports this module.
_MODULES = ("deployments.engine.replica", "deployments.engine.vllm.adapter")

# A replica that has just started is more important than a process in waiting.
SETTLE_S = 15.0
PERIOD_S = 5.0
# How long a requested process may take to appear.
ASKED_S = 60.0
# A replica requests this many processes within this time, in case they cannot live here.
ASKS, ASKS_S = 3, 3600.0
# How long processes stay after the node's last replica, which may be replaced, or whose pool may
# scale to zero and back.
WANTED_S = 600.0
# Ray keeps the process of an actor that is not started in the end.
UNUSED_S = 3600.0
FORGOTTEN_S = 24 * 3600.0
# The memory of both processes, and the largest share of the node's memory in use. Ray ends busy
# workers at 95 %.
MEMORY_BYTES, USED_AT_MOST = 2**30, 0.9
# Ray does not end idle workers earlier.
KEEP_ALIVE_S = 365 * 24 * 3600
RPC_S = 10.0
# Modules whose changes make a process in waiting outdated.
CODE = ("autoscaling.", "common.", "deployments.", "observability.", "router.", "vllm.version")


def environment(of_engines: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to the environment of a pool's engines."""
    told = json.dumps(sorted(of_engines.items())).encode()
    key = hashlib.sha256(told).hexdigest()[:16]
    return {HOOK: f"{__name__}.{warm_up.__name__}", KEY: key}


def folder_of(node_id: str) -> Path:
    """Return the folder of this process's environment."""
    return user_folder() / "prestarts" / f"{node_id}-{os.environ[KEY]}"


def _make(folder: Path) -> None:
    """Create the folder. Raises OSError if it is not private to this user."""
    made_private(user_folder())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "wanted").touch()


def warm_up() -> None:
    """Preload, in a new worker process of Ray, which Ray ends if this raises."""
    try:
        # reading the context without a process starts one
        if ray.is_initialized():
            folder = folder_of(ray.get_runtime_context().get_node_id())
            threading.Thread(target=_end_unless_needed, args=(folder,), daemon=True).start()
            _make(folder)
            _wait_in(folder)
    except Exception:
        logger.exception("no engine starts from this process in waiting")


# The lock of this process, during and after its wait, and the niceness of its threads.
_lock: IO[str] | None = None
_niceness = 0
# Either a replica starts or the process ends.
_deciding, _has_begun = threading.Lock(), False


def _wait_in(folder: Path) -> None:
    global _lock, _niceness
    mine = folder / f"asked-{os.getpid()}"
    try:
        (folder / "asked").rename(mine)
    except FileNotFoundError:  # an actor will start in this process
        return
    changes = json.loads(mine.read_text())
    mine.unlink()
    _lock = _taken(folder / "waits")
    if _lock is None:
        return
    _niceness = os.nice(NICENESS)
    core_process.keep_one(changes)
    _import_all()


def _taken(path: Path) -> IO[str] | None:
    """Return the locked file, None if another process has the lock. A replica that checks holds it
    for a moment, too."""
    lock = path.open("a")
    for _ in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return lock
    lock.close()
    return None


def _import_all() -> None:
    with core_process.without_gc():
        for module in _MODULES:
            import_module(module)


def _end_unless_needed(folder: Path) -> None:
    """Wait until a replica starts here, or Ray has chosen this process for one; otherwise end the
    process."""
    since, raylet, seen = time.monotonic(), os.getppid(), dict[str, int]()
    while not _is_taken():
        if os.getppid() != raylet:
            needed = False
        elif is_waiting():
            needed = _unwanted_s(folder) < WANTED_S and _holds(0) and _is_as_on_disk(seen)
        else:
            needed = time.monotonic() - since < UNUSED_S
        if not needed:
            with _deciding:
                if not _is_taken():
                    os._exit(0)
        time.sleep(PERIOD_S)


def _is_taken() -> bool:
    return _has_begun or not global_worker.actor_id.is_nil()


def _is_as_on_disk(seen: dict[str, int]) -> bool:
    """Return whether no module has changed. `seen`: file -> mtime in ns at the first check."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name.startswith(CODE):
            try:
                changed_at = Path(file).stat().st_mtime_ns
            except OSError:
                return False
            if seen.setdefault(file, changed_at) != changed_at:
                return False
    return True


def _unwanted_s(folder: Path) -> float:
    try:
        return time.time() - (folder / "wanted").stat().st_mtime
    except OSError:
        return FORGOTTEN_S


def _holds(more_bytes: int) -> bool:
    """Return whether the node, or this container, has this much free memory."""
    used_bytes: int = get_used_memory()  # type: ignore[no-untyped-call]
    of_bytes: int = get_system_memory()
    return used_bytes + more_bytes <= USED_AT_MOST * of_bytes


def is_waiting() -> bool:
    return _lock is not None and not _lock.closed


def somebody_waits_in(folder: Path) -> bool:
    with (folder / "waits").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def begin() -> bool:
    """Start a replica in this process. Return whether the process was preloaded for it."""
    global _has_begun
    with _deciding:
        _has_begun = True
    waited = is_waiting()
    if _lock is not None:
        _lock.close()
    if waited:  # this runs in another thread, and Linux has a niceness per thread
        os.setpriority(os.PRIO_PROCESS, 0, _niceness)
    else:
        os.nice(NICENESS)
    return waited


async def keep() -> NoReturn:
    """Keep a preloaded process for the next engine, from the time a replica's engine runs."""
    await asyncio.sleep(SETTLE_S)
    replica: Prestart | None = None

    async def look() -> None:
        nonlocal replica
        if replica is None:
            of_ray = ray.get_runtime_context()
            runtime_env = of_ray.get_runtime_env_string()  # type: ignore[no-untyped-call]
            replica = Prestart(folder_of(of_ray.get_node_id()), runtime_env)
        await replica.look()

    fails = "no process waits for the pool's next engine on this node"
    outages = (OSError,)
    await forever("prestart", look, PERIOD_S, fails=fails, logger=logger, outages=outages)


class Prestart:
    """The replica's side: it keeps a process waiting in the `folder`. `runtime_env` is that of
    Ray."""

    def __init__(self, folder: Path, runtime_env: str) -> None:
        self._folder = folder
        self._runtime_env = runtime_env
        self._asked_at: list[float] = []
        self._has_told = ""

    async def look(self) -> None:
        _make(self._folder)
        if somebody_waits_in(self._folder):
            self._has_told = ""
        elif not self._is_coming():
            if why := self._why_not():
                self._tell(why)
            else:
                _forget_others(self._folder)
                await asyncio.to_thread(self._ask)

    def _is_coming(self) -> bool:
        asked = self._folder / "asked"
        try:
            if abs(time.time() - asked.stat().st_mtime) < ASKED_S:
                return True
            asked.unlink()
        except FileNotFoundError:
            pass
        return False

    def _why_not(self) -> str:
        now = time.monotonic()
        self._asked_at = [at for at in self._asked_at if now - at < ASKS_S]
        if len(self._asked_at) >= ASKS:
            return f"{ASKS} processes started in the last hour failed or exited"
        if not _holds(MEMORY_BYTES):
            return f"it has too little memory left for {MEMORY_BYTES >> 20} MiB more"
        return ""

    def _tell(self, why: str) -> None:
        if why != self._has_told:
            self._has_told = why
            logger.warning(
                "no preloaded process waits for the pool's next engine on this node, which "
                "starts the"
                " ordinary way: %s",
                why,
            )

    def _ask(self) -> None:
        mine = self._folder / f"asks-{os.getpid()}"
        mine.write_text(json.dumps(core_process.changes()))
        asked = self._folder / "asked"
        try:
            os.link(mine, asked)
        except FileExistsError:  # another replica was first
            return
        finally:
            mine.unlink()
        try:
            prestart_worker(self._runtime_env)
        except BaseException:
            asked.unlink(missing_ok=True)
            raise
        self._asked_at.append(time.monotonic())


def _forget_others(folder: Path) -> None:
    """Delete the folders of nodes and environments that are gone: Ray renames a node at each
    start."""
    for other in folder.parent.iterdir():
        if other != folder and _unwanted_s(other) >= FORGOTTEN_S:
            shutil.rmtree(other, ignore_errors=True)


def prestart_worker(runtime_env: str) -> None:
    """Have this node's raylet start one more worker process with that environment.

    Raises ConnectionError if it does not answer.
    """
    import grpc  # type: ignore[import-untyped]
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import node_manager_pb2 as messages
    from ray.core.generated import node_manager_pb2_grpc as services
    from ray.core.generated.common_pb2 import Language  # type: ignore[attr-defined]

    node = global_worker.node
    assert node is not None
    request = messages.PrestartWorkersRequest(  # type: ignore[attr-defined]
        language=Language.PYTHON, keep_alive_duration_secs=KEEP_ALIVE_S, num_workers=1
    )
    request.runtime_env_info.serialized_runtime_env = runtime_env
    request.runtime_env_info.runtime_env_config.setup_timeout_seconds = 600
    address = f"{node.node_ip_address}:{node.node_manager_port}"
    with init_grpc_channel(address) as channel:
        raylet = services.NodeManagerServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            raylet.PrestartWorkers(request, timeout=RPC_S)
        except grpc.RpcError as error:
            raise ConnectionError(f"the raylet at {address} does not answer: {error!r}") from error
