"""Models of a pool that were downloaded completely before its engine starts.

An engine that loads these folders does not contact the Hub. So outages and limits of the Hub do not
prevent a start, and a revision that moves there changes no replica here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from deployments.fleet.model_lookup import draft_model, pool_model
from deployments.fleet.pool import Pool
from deployments.models.hub_snapshots import whole_snapshot

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# Arguments that name another repository of the Hub, or load one that a file names.
_LOAD_MORE = ("trust_remote_code", "enable_lora", "tokenizer", "hf_config_path", "spec_model")


class LocalModels(NamedTuple):
    """`folders`: the folder of each complete model on this node, by its Hub id.

    `is_offline`: the engine needs no other files of the Hub.
    """

    folders: Mapping[str, str]
    is_offline: bool = False


def local_models(pool: Pool, environ: Mapping[str, str]) -> LocalModels:
    """Return the pool's models and drafts on this node; none for a pipeline-parallel pool, whose
    stages may be on nodes that downloaded another commit."""
    if pool.pipeline_parallel > 1:
        return LocalModels({})
    named = {model for model in (pool_model(pool), draft_model(pool)) if model}
    if len({model.name for model in named}) < len(named):  # two revisions of one model
        return LocalModels({})
    found = {each.name: whole_snapshot(each.name, each.revision, environ) for each in named}
    folders = {name: str(folder) for name, folder in found.items() if folder}
    return LocalModels(folders, pool.model in folders and not _needs_hub(pool, folders))


def _needs_hub(pool: Pool, folders: Mapping[str, str]) -> bool:
    args = {key.replace("-", "_"): value for key, value in pool.engine_args.items()}
    return any(args.get(key) for key in _LOAD_MORE) or any(_ids(args) - folders.keys())


def _ids(value: Any) -> set[str]:
    """Return all texts in it that may be an id of the Hub."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return set().union(*map(_ids, value))
    return {value} if isinstance(value, str) and _HUB_ID.fullmatch(value) else set()
