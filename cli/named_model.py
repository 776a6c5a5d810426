"""Whether the name of a model on a command line is one, before anything is loaded for it."""

from __future__ import annotations

from pathlib import Path

from deployments.models.model import EMBEDDED, resolve_model
from deployments.models.model_config import model_config, model_folder


def check_model(model: str, revision: str | None = None) -> None:
    """Raise Problem for a folder that does not exist and for an id that no model has.

    An id that this machine has not seen is looked up on the Hugging Face Hub.
    """
    if model == EMBEDDED:
        return
    if model_folder(model) is not None:
        resolve_model(model, lambda fraction, step: None)
    elif not Path(model).exists() and model_config(model, revision) is None:
        model_config(model, revision, download=True)
