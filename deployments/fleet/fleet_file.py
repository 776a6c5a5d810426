"""The fleet file: reads a path into a `Fleet`, or into all of its faults.

Its parts:

    deployments.fleet.fleet                 the allowed content, and its meaning
    common.yaml_file                        YAML with line numbers
    common.section                          messages for pydantic's errors
    deployments.fleet.settings.environment  ${VARIABLE}
    deployments.fleet.settings.engine_args  vLLM's check of the engine arguments
    deployments.fleet.settings.quality      the quality that weights must prove
    deployments.fleet.removed_keys          what replaces former keys
    deployments.fleet.weights_check         models against engine arguments and GPUs
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from common.errors import Problem
from common.section import did_you_mean, faults_of
from common.yaml_file import Fault, FileError, Keys, YamlFile, read_yaml, unreadable
from deployments.fleet.fleet import Fleet, FleetBase
from deployments.fleet.milliseconds import in_milliseconds
from deployments.fleet.removed_keys import removed_in
from deployments.fleet.settings import masking
from deployments.fleet.settings.engine_args import refused_by_vllm
from deployments.fleet.settings.environment import resolved
from deployments.fleet.settings.fleet_rules import broken_by_pools, engine_arg_name
from deployments.fleet.settings.quality import prove
from deployments.fleet.weights_check import check_weights

__all__ = [
    "CheckedFleet",
    "FleetError",
    "check_fleet",
    "check_text",
    "load_fleet",
    "parse_base",
    "parse_fleet",
    "raw_fleet",
    "shipped_fleets",
]

Base = TypeVar("Base", bound=FleetBase)
_REMOVED = "this key was removed"
SHIPPED = Path(__file__).parents[2] / "fleets"


class FleetError(FileError):
    """A fleet file that cannot be used."""


@dataclass(frozen=True)
class CheckedFleet:
    """A fleet whose weights were checked.

    `warnings`: settings that work, but slowly or not as intended. `notes`: checks that were not
    possible.
    """

    source: str
    fleet: Fleet
    warnings: tuple[Fault, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        warnings = [f"warning: {warning.text(self.source)}" for warning in self.warnings]
        return [*warnings, *(f"note: {self.source}: {note}." for note in self.notes)]


def load_fleet(path: str | Path, check_engine_args: bool = True) -> Fleet:
    """Return the fleet in the file at `path`; a bare name, such as `laptop`, selects a built-in
    one.

    Raises `FleetError` with every fault of the file. With `check_engine_args`, vLLM's parser is
    asked too, in a separate process: some seconds the first time.
    """
    file = _file_at(path)
    return parse_fleet(_text_of(file, str(path)), str(file), check_engine_args)


def raw_fleet(path: str | Path) -> dict[str, Any]:
    """Return the content of the file that `load_fleet` reads. Raises `FleetError`."""
    file = _file_at(path)
    read = read_yaml(_text_of(file, str(path)), "Begin with name: and pools:")
    if read.faults:
        raise FleetError(str(file), read.faults)
    return dict(read.data)


def parse_fleet(text: str, source: str = "fleet.yaml", check_engine_args: bool = True) -> Fleet:
    """Parse a file's text like `load_fleet`; `source` is its name in messages."""
    return _read(text, source, check_engine_args)[0]


def parse_base(text: str, source: str = "fleet.yaml") -> FleetBase:
    """Parse like `parse_fleet`, but without pools: the base of any fleet."""
    file = read_yaml(text, "Begin with name:, as fleets/laptop.yaml does")
    found: dict[Keys, Fault] = {}
    base = (
        None
        if file.faults
        else _validated(_with_environment(file.data, found), found, Path(source).parent, FleetBase)
    )
    if base is None or found:
        raise FleetError(source, [*file.faults, *file.located(found.items())])
    return base


def check_fleet(path: str | Path, check_engine_args: bool = True) -> CheckedFleet:
    """Load like `load_fleet`, and check the arguments against models known on this machine: see
    docs/preflight.md."""
    file = _file_at(path)
    return check_text(_text_of(file, str(path)), str(file), check_engine_args)


def check_text(
    text: str, source: str = "fleet.yaml", check_engine_args: bool = True
) -> CheckedFleet:
    """Check a file's text like `check_fleet`."""
    fleet, file = _read(text, source, check_engine_args)
    check = check_weights(fleet)
    found: dict[bool, list[tuple[Keys, Fault]]] = {True: [], False: []}
    for keys, each in check.found:
        value = ... if each.value is None else each.value
        fault = fault_at(keys, value, each.message, each.remedy)
        found[each.refuses].append((_as_spelled(file.data, keys), fault))
    if refused := file.located(found[True]):
        raise FleetError(source, refused)
    found[False] += (
        (_as_spelled(file.data, keys), fault_at(keys, value, message, remedy))
        for keys, value, message, remedy in in_milliseconds(fleet)
    )
    warnings = file.located(found[False])
    return CheckedFleet(source, fleet, tuple(warnings), tuple(check.notes))


def _read(text: str, source: str, check_engine_args: bool) -> tuple[Fleet, YamlFile]:
    file = read_yaml(text, "Begin with name: and pools:, as fleets/laptop.yaml does")
    if file.faults:
        raise FleetError(source, file.faults)
    found: dict[Keys, Fault] = {}
    data = _with_environment(file.data, found)
    fleet = _validated(data, found, Path(source).parent, Fleet)
    if check_engine_args:
        _ask_vllm(data, found)
    if fleet is not None:
        _add(found, _unproven(fleet))
    if fleet is None or found:
        raise FleetError(source, file.located(found.items()))
    return fleet, file


def _file_at(path: str | Path) -> Path:
    bare_name = isinstance(path, str) and "/" not in path and not Path(path).suffix
    return SHIPPED / f"{path}.yaml" if bare_name else Path(path)


def _as_spelled(data: Any, keys: Iterable[str]) -> Keys:
    """Return `keys` in the file's spelling: with - or with _."""
    spelled = []
    for key in keys:
        section = data if isinstance(data, Mapping) else {}
        dashed = key.replace("_", "-")
        spelled.append(dashed if key not in section and dashed in section else key)
        data = section.get(spelled[-1])
    return tuple(spelled)


def shipped_fleets() -> list[str]:
    """Return the names of the built-in fleets."""
    return sorted(file.stem for file in SHIPPED.glob("*.yaml"))


def _text_of(file: Path, asked_for: str) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        names = shipped_fleets()
        near = did_you_mean(Path(asked_for).stem, names)
        remedy = f"{near} " if near else ""
        remedy += (
            f"Built-in fleets: {', '.join(names)}; for another fleet write its path, ./my.yaml"
        )
        fault = Fault("", None, "no such fleet file", remedy)
    except (OSError, UnicodeDecodeError) as error:
        fault = unreadable(error)
    raise FleetError(asked_for, [fault])


def _with_environment(data: Mapping[Any, Any], found: dict[Keys, Fault]) -> dict[Any, Any]:
    """Return `data` with ${VARIABLE} replaced in the few places that may contain one."""
    copy = dict(data)
    for loc in _places_for_variables(data):
        *above, last = loc
        section: Any = copy
        for key in above:
            section[key] = dict(section[key])
            section = section[key]
        text = section[last]
        section[last], unresolved = resolved(text, os.environ)
        if unresolved:
            found[loc] = fault_at(loc, text, *unresolved[0])
    return copy


def _places_for_variables(data: Mapping[Any, Any]) -> Iterator[Keys]:
    redis = data.get("redis")
    if isinstance(redis, Mapping) and isinstance(redis.get("url"), str):
        yield ("redis", "url")
    for _, section, env in _sections_of_pools(data, "env"):
        yield from ((*section, name) for name, value in env.items() if isinstance(value, str))


def _validated(
    data: Mapping[Any, Any], found: dict[Keys, Fault], folder: Path, of: type[Base]
) -> Base | None:
    try:
        return of.model_validate(data, context={"folder": folder})
    except ValidationError as error:
        page = "docs/fleet-file.md"
        removed = removed_in(data)
        _add(found, ((keys, fault_at(keys, ..., _REMOVED, remedy)) for keys, remedy in removed))
        _add(found, faults_of(error, of, data, page, masking.shown, opaque="engine_args"))
    # pydantic checks these only in a fleet without other faults
    pools = data.get("pools")
    broken = broken_by_pools(pools) if isinstance(pools, Mapping) else ()
    _add(
        found,
        ((r.loc, fault_at(r.loc, r.value, r.message, r.remedy)) for r in broken),
    )
    return None


def _ask_vllm(data: Mapping[Any, Any], found: dict[Keys, Fault]) -> None:
    """Add vLLM's faults of engine arguments that have no fault yet."""
    asked: dict[str, dict[str, Any]] = {}
    spelled: dict[tuple[str, str], str] = {}
    for pool_name, section, engine_args in _sections_of_pools(data, "engine_args"):
        for key, value in engine_args.items():
            if isinstance(key, str) and (*section, key) not in found:
                asked.setdefault(pool_name, {})[engine_arg_name(key)] = value
                spelled[pool_name, engine_arg_name(key)] = key
    for refusal in refused_by_vllm(asked):
        outer, *inner = refusal.key.split(".")
        keys = [spelled.get((refusal.pool, outer), outer), *inner] if refusal.key else []
        loc: Keys = ("pools", refusal.pool, "engine_args", *keys)
        fault = fault_at(loc, refusal.value, refusal.message, refusal.remedy)
        says_nothing = not refusal.key or refusal.value is None
        _add(found, [(loc, replace(fault, value=None) if says_nothing else fault)])


def _unproven(fleet: Fleet) -> Iterator[tuple[Keys, Fault]]:
    """Yield pools whose weights are on this machine and fail their `quality`."""
    for name, pool in fleet.pools.items():
        folder = Path(pool.model).absolute()
        if pool.quality is None or not folder.is_dir():
            continue
        try:
            prove(folder, pool.quality)
        except Problem as error:
            keys: Keys = ("pools", name, "quality")
            yield keys, fault_at(keys, ..., error.message, error.remedy)


def _sections_of_pools(
    data: Mapping[Any, Any], key: str
) -> Iterator[tuple[str, Keys, Mapping[Any, Any]]]:
    """Yield pool, keys and mapping for every pool with a mapping under `key`."""
    pools = data.get("pools")
    for name, pool in pools.items() if isinstance(pools, Mapping) else ():
        section = pool.get(key) if isinstance(pool, Mapping) else None
        if isinstance(section, Mapping):
            yield str(name), ("pools", name, key), section


def _add(found: dict[Keys, Fault], problems: Iterable[tuple[Keys, Fault]]) -> None:
    """Keep the first fault of a place, because later ones follow from it."""
    for keys, problem in problems:
        found.setdefault(keys, problem)


def fault_at(keys: Iterable[object], value: object, message: str, remedy: str) -> Fault:
    """Return the fault of `value` at `keys`; `...` is not shown."""
    path = tuple(map(str, keys))
    return Fault(
        ".".join(path), None if value is ... else masking.shown(path, value), message, remedy
    )
