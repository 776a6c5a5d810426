"""What preflight finds of models whose license the Hub wants accepted."""

from __future__ import annotations

import pytest

from tests.k8s.asking import EIGHT, READY, finding_titled, llama, needs, preflight_findings
from tests.k8s.objects import Object, secret, storage_class

GATED = "meta-llama/Llama-3.2-1B-Instruct"
FREE = "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4"
TITLE = f"license of {GATED}"
DRAFTED = {
    "llama": llama(
        model=FREE,
        engine_args={
            "speculative_config": {
                "method": "draft_model",
                "model": GATED,
                "num_speculative_tokens": 4,
            }
        },
    )
}
DOWNLOADED: Object = {"models": {"storage": "pvc", "download": {"enabled": True}}}


def test_a_gated_draft_without_a_token_is_a_problem() -> None:
    classes = storage_class("nfs", default=True)
    finding = finding_titled(
        preflight_findings(*READY, EIGHT, classes, pools=DRAFTED, values=DOWNLOADED), TITLE
    )
    assert finding.severity == "problem"
    assert finding.seen == (
        "the Hub serves it only to accounts that accepted llama3.2, and pods have no token; "
        "llama would wait for its download"
    )
    assert "models.hub.existingSecret" in finding.remedy


def test_a_gated_model_with_a_token_gives_a_note_about_the_license() -> None:
    values = {"models": {"hub": {"existingSecret": "hub"}}}
    found = preflight_findings(*READY, EIGHT, secret("hub", "token"), pools=DRAFTED, values=values)
    assert finding_titled(found, TITLE).severity == "note"


@pytest.mark.parametrize(
    "engine",
    [
        {"envFrom": [{"secretRef": {"name": "env"}}]},
        {"env": [{"name": "HF_ENDPOINT", "value": "https://mirror.acme.internal"}]},
    ],
    ids=["a token may be there", "a mirror"],
)
def test_a_token_that_the_environment_may_hold_is_not_reported_missing(engine: Object) -> None:
    assert needs(DRAFTED, {"enginePods": engine}).hub_token is None


def test_weights_that_exist_already_need_no_token() -> None:
    there = {"models": {"storage": "pvc", "pvc": {"existingClaim": "weights"}}}
    assert not needs(DRAFTED, there).asks_hub


def test_ungated_models_need_no_token() -> None:
    found = preflight_findings(*READY, EIGHT, pools={"llama": llama(model=FREE)})
    assert [one.title for one in found if one.title.startswith("license")] == []
