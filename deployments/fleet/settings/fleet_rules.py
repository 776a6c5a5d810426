"""Rules of the fleet file that types cannot express, each with its remedy.

Rules over several keys take plain mappings, so that they also apply to a file with other faults.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from common.section import Broken, did_you_mean, raise_all, refuse
from deployments.fleet.settings import redis_url
from deployments.fleet.settings.reserved import RESERVED_ENV, why_reserved

EMBEDDED_MODEL = "embedded"
EMBEDDED_MODEL_NAME = "smollm2-135m-instruct"

DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
HUGGING_FACE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)?")
PATH = re.compile(r"(\.{0,2}/|[a-z0-9]+://).+")
# a file, or a tag of a repository, as older vLLMs and other programs name it
GGUF = re.compile(r".*(\.[Gg][Gg][Uu][Ff]|[Gg][Gg][Uu][Ff]:\w+)")
GGUF_REMEDY = (
    "Convert the file with antefix quantize, and write the path of the folder that this creates"
)
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
WEB_ADDRESS = re.compile(r"https?://\S+")
# Keys of `vllm_xargs` that vLLM's core reads: with them a client would affect other clients.
XARGS_OF_ENGINES = ("kv_cache_report_mode", "kv_transfer_params", "ec_transfer_params")
_PARALLEL_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
)


def dns_label(name: str) -> str:
    if not DNS_LABEL.fullmatch(name):
        raise refuse(
            "not a DNS label", "Use lower case letters, digits and inner hyphens, 63 at most"
        )
    return name


def _is_model(text: str) -> bool:
    return bool(HUGGING_FACE_ID.fullmatch(text) or PATH.fullmatch(text))


def usable_model(model: str) -> str:
    if GGUF.fullmatch(model):
        raise refuse("a GGUF file, which vLLM cannot read", GGUF_REMEDY)
    if not _is_model(model):
        raise refuse(
            "neither `embedded`, a Hugging Face id nor a path",
            "Write organization/model, or begin a path with / or ./",
        )
    return model


def usable_model_name(name: str) -> str:
    if not MODEL_NAME.fullmatch(name):
        raise refuse("not a model name", "Use letters, digits and . _ : / @ + -, 128 at most")
    return name


def name_of_model(model: object) -> str:
    """Return the default name under which a model is served; empty for an unusable model."""
    if model == EMBEDDED_MODEL:
        return EMBEDDED_MODEL_NAME
    if not isinstance(model, str) or not _is_model(model):
        return ""
    return model.rstrip("/").rpartition("/")[2]


def usable_redis_url(url: str) -> str:
    refusal = redis_url.refusal_of(url)
    if refusal is not None:
        raise refuse(*refusal)
    return url


def usable_xarg(name: str) -> str:
    if name in XARGS_OF_ENGINES:
        raise refuse("an argument that Antefix's own vLLM plugins read", "Leave it out")
    return name


def usable_env_name(name: str) -> str:
    if not ENV_NAME.fullmatch(name):
        raise refuse(
            "not the name of an environment variable",
            "Use letters, digits and _, not a digit first",
        )
    if name in RESERVED_ENV:
        raise refuse("Antefix sets this itself", RESERVED_ENV[name])
    return name


def usable_header(name: str) -> str:
    if not HEADER.fullmatch(name):
        raise refuse("not the name of an HTTP header", "Use letters, digits and hyphens")
    return name.lower()


def web_address(address: str) -> str:
    if not WEB_ADDRESS.fullmatch(address):
        raise refuse("not a web address", "Begin it with https:// or http://")
    return address


def usable_env_value(value: str) -> str:
    if "\0" in value:
        raise refuse(
            "contains a NUL character", "Remove it: environment variables cannot contain one"
        )
    return value


def engine_arg_name(key: str) -> str:
    """Return vLLM's spelling: max-model-len and max_model_len are one."""
    return key.replace("-", "_")


def free_engine_arg(key: str) -> str:
    name = engine_arg_name(key)
    reason = why_reserved(name.lstrip("_").removeprefix("no_"))
    if reason is not None:
        raise refuse("Antefix sets this itself", reason)
    if name.startswith("_"):
        raise refuse("not the name of a vLLM flag", f"Write {name.lstrip('_')}, without dashes")
    return name


def no_engine_arg_twice(engine_args: Any) -> Any:
    if isinstance(engine_args, Mapping):
        seen: set[str] = set()
        broken = []
        for key in filter(lambda key: isinstance(key, str), engine_args):
            name = engine_arg_name(key)
            if name in seen:
                message = "given twice, once with - and once with _"
                broken.append(Broken((key,), engine_args[key], message, "Keep one of the two"))
            seen.add(name)
        raise_all(broken)
    return engine_args


def parallel_size(engine_args: Mapping[str, Any], name: str) -> int:
    """Return a degree of parallelism; 1 if it is unset or not a whole number above 0."""
    size = engine_args.get(name)
    if isinstance(size, str) and size.isdecimal():
        size = int(size)
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else 1


def world_size(engine_args: Mapping[str, Any]) -> int:
    product = 1
    for name in _PARALLEL_SIZES:
        product *= parallel_size(engine_args, name)
    return product


def lora_names(engine_args: Mapping[str, Any]) -> tuple[str, ...]:
    modules = engine_args.get("lora_modules") or ()
    names: list[str] = []
    for module in modules if isinstance(modules, list) else [modules]:
        if isinstance(module, Mapping) and isinstance(module.get("name"), str):
            names.append(module["name"])
        elif isinstance(module, str) and "=" in module:
            names.append(module.partition("=")[0])
    return tuple(names)


def broken_by_pool(engine_args: Mapping[str, Any], gpus: float | None) -> Iterator[Broken]:
    """Check that GPUs match the engine's parallelism: more stay idle, fewer never start."""
    needed = world_size(engine_args)
    if gpus is None or gpus in (0, needed) or (needed == 1 and gpus < 1):
        return
    sizes = " x ".join(f"{name} {parallel_size(engine_args, name)}" for name in _PARALLEL_SIZES[:2])
    yield Broken(
        ("resources", "gpus"),
        gpus,
        f"the engine uses {needed} ({sizes})",
        f"Set it to {needed}, or leave it out",
    )


def broken_by_pools(pools: Mapping[str, Any]) -> Iterator[Broken]:
    """Check rules among pools. Pools that are not mappings are skipped."""
    known = {
        name: pool
        for name, pool in pools.items()
        if isinstance(name, str) and isinstance(pool, Mapping)
    }
    yield from _overflow_astray(known)
    yield from _prefill_astray(known)
    yield from _model_names_twice(known)


def _overflow_astray(pools: Mapping[str, Mapping[str, Any]]) -> Iterator[Broken]:
    for name, pool in pools.items():
        target = _overflow_of(pool)
        if target is None:
            continue
        loc = ("pools", name, "overflow", "to")
        others = [other for other in pools if other != name]
        if target not in pools:
            remedy = did_you_mean(target, others) or f"Pools here: {', '.join(pools)}"
            yield Broken(loc, target, "no pool has this name", remedy)
        elif target == name:
            yield Broken(loc, target, "a pool cannot overflow to itself", "Name another pool")
        elif (cycle := _cycle_from(name, pools)) is not None:
            chain = " -> ".join(cycle)
            yield Broken(
                loc, target, f"overflow forms a circle: {chain}", "Remove one of these overflows"
            )


def _prefill_astray(pools: Mapping[str, Mapping[str, Any]]) -> Iterator[Broken]:
    """Check that each pool for prompts exists, and that the two exchange blocks."""
    for name, pool in pools.items():
        prefill = pool.get("prefill")
        target = prefill.get("pool") if isinstance(prefill, Mapping) else None
        if not isinstance(target, str):
            continue
        other = pools.get(target)
        loc, others = ("pools", name, "prefill", "pool"), [each for each in pools if each != name]
        if other is None:
            remedy = did_you_mean(target, others) or f"Pools here: {', '.join(pools)}"
            yield Broken(loc, target, "no pool has this name", remedy)
        elif other is pool:
            yield Broken(loc, target, "a pool computes its own prompts anyway", "Name another pool")
        elif other.get("prefill") is not None:
            remedy = f"Leave out pools.{target}.prefill"
            yield Broken(loc, target, "that pool has its prompts computed elsewhere too", remedy)
        elif other.get("model") != pool.get("model"):
            remedy = f"Give both the same model: here it is {pool.get('model')}"
            yield Broken(loc, target, f"that pool has the model {other.get('model')}", remedy)
        else:
            for each, settings in ((name, pool), (target, other)):
                tiers = settings.get("kv_tiers")
                if not isinstance(tiers, Mapping) or not tiers.get("peers"):
                    remedy = f"Set pools.{each}.kv_tiers.peers to true, or leave out prefill"
                    yield Broken(loc, target, f"the pool {each} exchanges no blocks", remedy)


def _overflow_of(pool: Mapping[str, Any]) -> str | None:
    overflow = pool.get("overflow")
    target = overflow.get("to") if isinstance(overflow, Mapping) else None
    return target if isinstance(target, str) else None


def _cycle_from(start: str, pools: Mapping[str, Mapping[str, Any]]) -> list[str] | None:
    chain = [start]
    while (target := _overflow_of(pools[chain[-1]])) is not None and target in pools:
        chain.append(target)
        if target == start:
            return chain
        if target in chain[:-1]:
            return None
    return None


def broken_by_objectives(pool: Any) -> Iterator[Broken]:
    """Check rules among `slo`, `overflow` and `autoscaling` of a pool."""
    yield from _broken_by_autoscaling(pool)
    if pool.warm_replicas and pool.autoscaling is None and pool.slo.interactive is None:
        yield Broken(
            ("warm_replicas",),
            pool.warm_replicas,
            "without an SLO they never receive traffic",
            "Set slo.interactive.ttft_s, or add them to `replicas`",
        )
    if (overflow := pool.overflow) is None:
        return
    if overflow.leave > overflow.enter:
        yield Broken(
            ("overflow", "leave"),
            overflow.leave,
            f"above `enter`, {overflow.enter:g}",
            f"Set it to at most {overflow.enter:g}",
        )
    if pool.slo.interactive is None:
        yield Broken(
            ("overflow",),
            ...,
            "without an SLO no request overflows",
            "Set slo.interactive.ttft_s, or leave it out",
        )


def broken_by_ports(fleet: Any) -> Iterator[Broken]:
    """Check that a node's metrics and its gateways use different ports."""
    if fleet.metrics.port == fleet.gateway.port:
        message = "the gateways listen on this port too"
        yield Broken(("metrics", "port"), fleet.metrics.port, message, "Choose another")


def broken_by_budget(fleet: Any) -> Iterator[Broken]:
    """Check that the minimum and the initial GPUs of all pools fit into the budget."""
    if fleet.gpu_budget is None:
        return
    least = {name: pool.least_replicas for name, pool in fleet.pools.items()}
    first = {name: pool.first_replicas for name, pool in fleet.pools.items()}
    for replicas, verb, keys in (
        (least, "always have", "min_replicas"),
        (first, "begin with", "replicas or warm_replicas"),
    ):
        gpus = {name: count * _gpus_of(fleet.pools[name]) for name, count in replicas.items()}
        if sum(gpus.values()) > fleet.gpu_budget:
            shares = " + ".join(f"{name} {needed:g}" for name, needed in gpus.items())
            yield Broken(
                ("gpu_budget",),
                fleet.gpu_budget,
                f"the pools {verb} {sum(gpus.values()):g} ({shares})",
                f"Raise it, or lower their {keys}",
            )
            return


def _gpus_of(pool: Any) -> float:
    """Return the GPUs of one replica."""
    return float(pool.world_size if pool.resources.gpus is None else pool.resources.gpus)


def _broken_by_autoscaling(pool: Any) -> Iterator[Broken]:
    if (autoscaling := pool.autoscaling) is None:
        return
    least, most = autoscaling.min_replicas, autoscaling.max_replicas
    if least > most:
        yield Broken(
            ("autoscaling", "min_replicas"),
            least,
            f"above `max_replicas`, {most}",
            f"Set it to at most {most}",
        )
    if pool.warm_replicas >= most:
        yield Broken(
            ("warm_replicas",),
            pool.warm_replicas,
            f"autoscaling.max_replicas, {most}, leaves no replica for traffic",
            f"Set it to at most {most - 1}",
        )
    if pool.slo.interactive is None:
        yield Broken(
            ("autoscaling",),
            ...,
            "without an SLO autoscaling cannot compute how many replicas are needed",
            "Set slo.interactive.ttft_s",
        )


def _model_names_twice(pools: Mapping[str, Mapping[str, Any]]) -> Iterator[Broken]:
    owners: dict[str, str] = {}
    for name, pool in pools.items():
        served = pool.get("served_model_name") or name_of_model(pool.get("model"))
        engine_args = pool.get("engine_args")
        loras = lora_names(engine_args) if isinstance(engine_args, Mapping) else ()
        places = [(served, "served_model_name")] if served else []
        places += [(lora, "lora_modules") for lora in loras]
        for model_name, key in places:
            loc = ("pools", name, *(("engine_args",) if key == "lora_modules" else ()), key)
            if not isinstance(model_name, str):
                continue
            if model_name in owners:
                message = f"pools.{owners[model_name]} serves this model name too"
                yield Broken(loc, model_name, message, "Give one of the two another name")
            owners.setdefault(model_name, name)
