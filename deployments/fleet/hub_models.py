"""Models of a pool on the Hugging Face Hub: its model and its draft, with size and license."""

from dataclasses import dataclass

from deployments.fleet.model_lookup import NamedModel, draft_model, look_up, pool_model
from deployments.fleet.pool import Pool
from deployments.models.model import EMBEDDED
from weights.kernels.finding import EngineConfig, Model
from weights.kernels.fits import weight_bytes_of
from weights.model.known_models import known_model


@dataclass(frozen=True)
class HubModel:
    """A model. `bytes`: the size of its weight files, None if unknown.

    `license` is set if the Hub serves the model only to accounts that accepted it.
    """

    name: str
    revision: str | None
    bytes: int | None
    license: str | None = None


def hub_models(pool: Pool) -> tuple[HubModel, ...]:
    """Return the pool's model, then its draft, except those that are not models of the Hub."""
    named = (pool_model(pool), draft_model(pool))
    return tuple(_described(model) for model in named if model and _is_on_hub(model))


def _described(model: NamedModel) -> HubModel:
    known = known_model(model.name)
    license = known.license if known and known.gated else None
    return HubModel(model.name, model.revision, _stored_bytes(model), license)


def _stored_bytes(model: NamedModel) -> int | None:
    found = look_up(model)
    return weight_bytes_of(found, EngineConfig({}, {})) if isinstance(found, Model) else None


def _is_on_hub(model: NamedModel) -> bool:
    return (
        model.name != EMBEDDED
        and not model.name.startswith(("/", ".", "~"))
        and ("://" not in model.name)
    )
