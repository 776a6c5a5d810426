"""A real reranker and a real embedder behind a real gateway. Each is the embedded model with
another head, so its scores mean nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import cohere
import httpx
import pytest
from openai import OpenAI

from tests.every_field.serving import Served, serving
from tests.fakes.engine import MODEL
from tests.fakes.front import KEY

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

COMMON = {
    "dtype": "float32",
    "max_model_len": 320,
    "max_num_seqs": 16,
    "enforce_eager": True,
    "runner": "pooling",
}
RERANKER = {
    "convert": "classify",
    "hf_overrides": {
        "architectures": ["LlamaForSequenceClassification"],
        "classifier_from_token": ["no", "yes"],
        "method": "from_2_way_softmax",
    },
}
DOCUMENTS = ["A ferry is a boat.", "A tree has leaves.", "The harbour is deep."]
ASKED: dict[str, Any] = {"model": MODEL, "query": "What is a ferry?", "documents": DOCUMENTS}


@pytest.fixture(scope="module")
def reranker(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("reranker") / "log"
    with serving(warm_python, COMMON | RERANKER, log) as served:
        yield served


@pytest.fixture(scope="module")
def embedder(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("embedder") / "log"
    with serving(warm_python, COMMON | {"convert": "embed"}, log) as served:
        yield served


def post(served: Served, path: str, fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.post(served.url + path, json=fields, headers=headers, timeout=120)


@pytest.mark.parametrize("path", ["/v2/rerank", "/v1/rerank", "/rerank"])
def test_documents_are_ranked(reranker: Served, path: str) -> None:
    answer = post(reranker, path, ASKED | {"top_n": 2})
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert len(results) == 2 and results[0]["relevance_score"] >= results[1]["relevance_score"]
    assert {result["index"] for result in results} <= {0, 1, 2}


def test_the_query_is_counted_once_per_document(reranker: Served) -> None:
    """The engine confirms as many tokens as it has read."""
    answer = post(reranker, "/v2/rerank", ASKED)
    read = int(answer.headers["x-antefix-prompt-tokens"])
    assert read == answer.json()["usage"]["total_tokens"]
    single = [post(reranker, "/v2/rerank", ASKED | {"documents": [d]}) for d in DOCUMENTS]
    assert read == sum(int(each.headers["x-antefix-prompt-tokens"]) for each in single)


def test_coheres_client_reranks(reranker: Served) -> None:
    client = cohere.ClientV2(base_url=reranker.url, api_key=KEY)
    answer = client.rerank(**ASKED, top_n=1)
    assert len(answer.results) == 1 and answer.results[0].index in (0, 1, 2)


async def test_coheres_async_client_reranks(reranker: Served) -> None:
    client = cohere.AsyncClientV2(base_url=reranker.url, api_key=KEY)
    answer = await client.rerank(**ASKED, top_n=1)
    assert len(answer.results) == 1 and answer.results[0].index in (0, 1, 2)


def test_texts_are_scored_and_classified(reranker: Served) -> None:
    scored = post(reranker, "/score", {"model": MODEL, "text_1": "a", "text_2": ["b", "c"]})
    assert [one["index"] for one in scored.json()["data"]] == [0, 1]
    classified = post(reranker, "/classify", {"model": MODEL, "input": ["a", "b", "c"]})
    assert len(classified.json()["data"]) == 3


def test_texts_are_embedded(embedder: Served) -> None:
    with OpenAI(base_url=f"{embedder.url}/v1", api_key=KEY, max_retries=0) as client:
        answer = client.embeddings.create(model=MODEL, input=["a ferry", "a tree"])
    assert len(answer.data) == 2 and len(answer.data[0].embedding) == 576
    pooled = post(embedder, "/pooling", {"model": MODEL, "input": "a ferry"})
    assert pooled.status_code == 200, pooled.text


def test_coheres_client_embeds(embedder: Served) -> None:
    client = cohere.ClientV2(base_url=embedder.url, api_key=KEY)
    # the model knows no types of input; the client's signature asks for one
    answer = client.embed(model=MODEL, input_type=cast(Any, None), texts=["a ferry", "a tree"])
    assert answer.embeddings.float_ is not None
    assert [len(one) for one in answer.embeddings.float_] == [576, 576]
    own = post(embedder, "/v1/embeddings", {"model": MODEL, "input": "a ferry"})
    assert answer.embeddings.float_[0] == pytest.approx(own.json()["data"][0]["embedding"])


def test_coheres_path_never_reuses_a_cached_prompt_of_another_tenant(embedder: Served) -> None:
    body = {"model": MODEL, "texts": ["A ferry carries cars over a river. " * 30]}
    found = []
    for salt in ("one", "one", "two", "two"):
        answer = post(embedder, "/v2/embed", {**body, "cache_salt": salt})
        assert answer.status_code == 200, answer.text
        found.append(int(answer.headers["x-antefix-cached-tokens"]))
    assert found[0] == found[2] == 0
    assert found[1] == found[3] > 0


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}),
        ("/classify", {"input": "hi"}),
    ],
)
def test_an_unsupported_endpoint_returns_an_error(embedder: Served, path: str, fields: Any) -> None:
    answer = post(embedder, path, {"model": MODEL, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "unsupported_endpoint"


def test_more_documents_than_allowed_are_refused(reranker: Served) -> None:
    answer = post(reranker, "/v2/rerank", ASKED | {"documents": ["a"] * 3000})
    assert answer.status_code == 400
    assert "max_sequences" in answer.text or "3,000" in answer.text


@pytest.mark.parametrize("documents", [[], None, 5, [None], [{}], {"content": 5}])
def test_malformed_documents_are_rejected_and_end_no_process(
    reranker: Served, documents: Any
) -> None:
    answer = post(reranker, "/v2/rerank", ASKED | {"documents": documents})
    assert 400 <= answer.status_code < 500, answer.text
    assert not reranker.dead
