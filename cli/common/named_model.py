"""Check of a model's name on a command line, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from deployments.models.model import EMBEDDED, resolve_model
from deployments.models.model_config import model_config, model_folder


def check_model(model: str, revision: str | None = None) -> None:
    """Raise Problem for a folder that does not exist, or an unknown id.

    An id that is not on this machine is looked up on the Hugging Face Hub.
    """
    if model == EMBEDDED:
        return
    if model_folder(model) is not None:
        resolve_model(model, lambda fraction, step: None)
    elif not Path(model).exists() and model_config(model, revision) is None:
        model_config(model, revision, download=True)
