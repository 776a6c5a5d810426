"""The folder of a local fleet: $ANTEFIX_HOME, otherwise $XDG_STATE_HOME/antefix, otherwise
~/.local/state/antefix. Only its user can read it.

    state.json   the fleet that was started last and not stopped
    keys.json    the API key and the engines' secret; created once, so that clients keep working
    ray-token    the token of this fleet's Ray; created once
    ray-*.pem    the certificate of its processes; created once
    logs/        logs of programs that Antefix starts; Ray's are in Ray's folder
    redis/       one folder per run, the embedded Redis's working directory
    metrics/     one folder per run, the metrics of its processes
    monitoring/  one folder per run, the data of its Prometheus and Alertmanager
    fleets/      files that `antefix up --model` wrote
    lock         held to start or stop a fleet

Every file is replaced in one rename, so a kill leaves the old one or the new one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import Problem
from common.file_lock import only_one


@dataclass(frozen=True)
class Keys:
    """The secrets of a home. It has no repr, because a repr ends up in logs."""

    api_key: str = field(repr=False)
    engine_secret: str = field(repr=False)


@dataclass(frozen=True)
class FleetState:
    """One run of a fleet. It is recorded before its first process starts."""

    run_id: str
    fleet_file: str
    fleet_digest: str
    host: str
    port: int
    base_url: str
    model: str
    drain_timeout_s: float
    started_at: float
    ray_address: str = ""
    ray_temp_dir: str = ""
    own_ray: bool = True
    deployed: bool = False
    started_serve: bool = True
    redis_url: str = field(default="", repr=False)
    # the deployed fleet; its `env` may hold secrets
    fleet: dict[str, Any] = field(default_factory=dict, repr=False)
    metrics_url: str = ""
    prometheus_url: str = ""
    alertmanager_url: str = ""
    ready: bool = False
    # set by `antefix up --host`, regardless of the fleet file
    host_given: bool = False

    @property
    def page_url(self) -> str:
        return f"{self.base_url.removesuffix('/v1')}/antefix/"


class Home:
    """The folder, created if missing. Raises Problem if it cannot be used."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or home_folder()
        self.logs = self.folder / "logs"
        try:
            for path in (self.folder, self.logs):
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.chmod(0o700)
        except OSError as error:
            raise _unusable(self.folder, error) from error

    def redis_folder(self, run_id: str) -> Path:
        return self.folder / "redis" / run_id

    def metrics_folder(self, run_id: str) -> Path:
        return self.folder / "metrics" / run_id

    def monitoring_folder(self, run_id: str) -> Path:
        return self.folder / "monitoring" / run_id

    @contextmanager
    def turn(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Hold the lock, so that one `up`, `update` or `down` runs at a time."""
        with only_one(self.folder / "lock", on_wait):
            yield

    def state(self) -> FleetState | None:
        """Return the fleet that was started and not stopped. It may have crashed since."""
        data = self._read("state.json")
        try:
            return None if data is None else FleetState(**data)
        except TypeError as error:
            raise self._damaged("state.json", str(error)) from error

    def save_state(self, state: FleetState) -> None:
        self._write("state.json", json.dumps(dataclasses.asdict(state), indent=1))

    def forget_state(self) -> None:
        (self.folder / "state.json").unlink(missing_ok=True)

    @property
    def keys_file(self) -> Path:
        """Return the file of API keys, in addition to the one in `keys`. Gateways of this machine
        follow it."""
        path = self.folder / "api-keys"
        if not path.exists():
            self._write(path.name, "# see antefix key\n")
        return path

    def keys(self) -> Keys:
        data = self._read("keys.json")
        if data is None:
            # Never a leading "-": after an option, it would be parsed as another option.
            made = Keys(f"sk-{secrets.token_urlsafe(32)}", secrets.token_urlsafe(32))
            self._write("keys.json", json.dumps(dataclasses.asdict(made), indent=1))
            return made
        try:
            return Keys(**data)
        except TypeError as error:
            raise self._damaged("keys.json", str(error)) from error

    def ray_token_file(self) -> Path:
        """Return the path of the token. A variable would show in every process's environment."""
        path = self.folder / "ray-token"
        if not path.exists():
            self._write(path.name, secrets.token_hex(32))
        return path

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            data = json.loads((self.folder / name).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._damaged(name, str(error)) from error
        except OSError as error:
            raise _unusable(self.folder / name, error) from error
        if not isinstance(data, dict):
            raise self._damaged(name, "not a JSON object")
        return data

    def _write(self, name: str, text: str) -> None:
        try:
            with tempfile.NamedTemporaryFile(  # mkstemp makes it 0600
                "w", dir=self.folder, prefix=f".{name}.", delete=False
            ) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(self.folder / name)
        except OSError as error:
            raise _unusable(self.folder, error) from error

    def _damaged(self, name: str, how: str) -> Problem:
        path = self.folder / name
        return Problem(f"{path} is damaged ({how})", f"remove it: rm {path}")


def home_folder() -> Path:
    if chosen := os.environ.get("ANTEFIX_HOME"):
        return Path(chosen).expanduser().absolute()
    if shared := os.environ.get("XDG_STATE_HOME"):
        return Path(shared).expanduser().absolute() / "antefix"
    return Path.home() / ".local" / "state" / "antefix"


def _unusable(path: Path, error: OSError) -> Problem:
    return Problem(
        f"{path} cannot be used: {error.strerror or error}",
        "make it writable, or set ANTEFIX_HOME to a folder that is",
    )
