"""What vLLM takes from clients, and the errors with which it refuses."""

import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from deployments.app import ENGINE_ENVIRONMENT
from deployments.engine.vllm.adapter import NO_HOSTS
from deployments.engine.vllm.api_server import prompt_length
from deployments.gateway.attempt.engine_errors import EngineError
from deployments.gateway.checks import kept_elsewhere
from deployments.gateway.intake.api_errors import from_engine
from deployments.wire import field_table
from deployments.wire.inference_paths import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBED,
    EMBEDDINGS,
    INFERENCE_PATHS,
    MESSAGES,
    RESPONSES,
    TRANSCRIPTIONS,
    TRANSLATIONS,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def test_gateways_recognize_the_message_of_a_dead_engine() -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    assert EngineError(500, str(EngineDeadError()).encode()).is_dead


@pytest.mark.parametrize("prompt", [{"prompt": "a" * 999}, {"prompt_token_ids": [1] * 11}])
def test_gateways_recognize_the_error_of_a_too_long_prompt(prompt: Any) -> None:
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers.params import TokenizeParams

    limits = TokenizeParams(max_total_tokens=10)
    check = limits.apply_pre_tokenization if "prompt" in prompt else limits.apply_post_tokenization
    with pytest.raises(VLLMValidationError) as refused:
        check(SimpleNamespace(max_chars_per_token=4, truncation_side="left"), prompt)
    told = create_error_response(refused.value).model_dump_json().encode()
    assert from_engine(400, told, "id").code == "context_length_exceeded"


def test_the_error_for_too_many_output_tokens_names_the_clients_field() -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers.params import TokenizeParams

    with pytest.raises(VLLMValidationError) as refused:
        TokenizeParams(10, 11, max_output_tokens_param="max_completion_tokens")
    assert refused.value.parameter == "max_completion_tokens"


def test_a_prompt_that_fills_the_context_has_the_error_of_a_longer_one() -> None:
    from vllm.exceptions import VLLMValidationError

    prompt_length.refuse_by_name()
    for api in ("chat_completion", "completion", "responses"):
        serving = import_module(f"vllm.entrypoints.openai.{api}.serving")
        assert serving.get_max_tokens(10, 5, 9, {}, truncate_prompt_tokens=None) == 1
        with pytest.raises(VLLMValidationError) as refused:
            serving.get_max_tokens(10, 5, 10, {}, truncate_prompt_tokens=None)
        assert refused.value.parameter == "input_tokens"


def test_a_response_reports_a_prompt_that_fills_the_context_like_other_apis() -> None:
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    prompt_length.refuse_by_name()
    serving = object.__new__(OpenAIServingResponses)
    serving.model_config = SimpleNamespace(max_model_len=10)
    serving._extract_prompt_len = lambda prompt: prompt
    serving.create_error_response = create_error_response
    assert serving._validate_generator_input(9) is None
    assert serving._validate_generator_input(10).error.param == "input_tokens"


def model_fields(of: Any) -> set[str]:
    """The names by which clients send the fields of a model, or of a union of some."""
    inside = {name for part in get_args(of) for name in model_fields(part)}
    own = getattr(of, "model_fields", {})
    return inside | {field.alias or name for name, field in own.items()}


def request_models() -> dict[str, Any]:
    """vLLM's request model of each path."""
    from vllm.entrypoints.anthropic import protocol as anthropic
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
    from vllm.entrypoints.pooling.embed.protocol import CohereEmbedRequest, EmbeddingRequest
    from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
    from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
    from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
    from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest

    return {
        CHAT: ChatCompletionRequest,
        COMPLETIONS: CompletionRequest,
        RESPONSES: ResponsesRequest,
        MESSAGES: anthropic.AnthropicMessagesRequest,
        COUNT_TOKENS: anthropic.AnthropicCountTokensRequest,
        EMBEDDINGS: EmbeddingRequest,
        EMBED: CohereEmbedRequest,
        field_table.CLASSIFY: ClassificationRequest,
        field_table.POOLING: PoolingRequest,
        **dict.fromkeys(field_table.RERANK, RerankRequest),
        **dict.fromkeys(field_table.SCORE, ScoreRequest),
        TRANSCRIPTIONS: TranscriptionRequest,
        TRANSLATIONS: TranslationRequest,
        field_table.TOKENIZE: TokenizeRequest,
        field_table.DETOKENIZE: DetokenizeRequest,
    }


@pytest.mark.parametrize("path", INFERENCE_PATHS)
def test_a_field_of_vllm_has_a_row_with_its_cost_or_is_refused(path: str) -> None:
    """A field that vLLM adds fails here: say what it costs and what bounds it, or refuse it."""
    of_vllm = model_fields(request_models()[path])
    taken = field_table.taken_by(path)
    read = {name for name, row in taken.items() if not row.by_gateway}
    assert of_vllm - taken.keys() - field_table.refused_on(path).keys() == set()
    assert read - of_vllm == set()


def test_the_enforcement_that_a_row_names_exists() -> None:
    named = {name for row in field_table.TAKEN for name in row.enforced}
    assert len(named) > 10
    assert [name for name in sorted(named) if not exists(name)] == []


def exists(dotted: str) -> bool:
    """Whether a module has this function, class or constant, or a class of it this setting."""
    parts = dotted.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, "model_fields", {}).get(name) or getattr(found, name, None)
        return found is not None
    return False


def test_a_missing_enforcement_is_detected() -> None:
    assert exists("deployments.fleet.fleet.GatewaySettings.max_n")
    assert not exists("deployments.fleet.fleet.GatewaySettings.max_of_yesterday")
    assert not exists("deployments.gateway.checks.no_such_module.check")


def test_every_bounded_row_names_its_enforcement() -> None:
    assert [row.names for row in field_table.TAKEN if bool(row.bound) != bool(row.enforced)] == []


def test_vllm_accepts_no_more_logprob_token_ids_than_gateways() -> None:
    from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS

    assert MAX_LOGPROB_TOKEN_IDS == field_table.MAX_LOGPROB_TOKEN_IDS


def test_repetition_detection_takes_few_comparisons() -> None:
    """The most that the bounds allow, on the answer for which vLLM compares most."""
    from vllm.sampling_params import RepetitionDetectionParams
    from vllm.v1.core.sched.utils import check_sequence_repetition

    class Counted(list[int]):
        looked = 0

        def __getitem__(self, at: Any) -> Any:
            Counted.looked += 1
            return super().__getitem__(at)

    most, of = 0, field_table
    for size in range(2, of.MAX_PATTERN_SIZE + 1):
        count = of.MAX_PATTERN_TOKENS // size
        for least in (1, size // 2, size):
            params = RepetitionDetectionParams(size, least, count)
            for other in range(1, of.MAX_PATTERN_TOKENS, 7):
                Counted.looked = 0
                answer = Counted([1] * (2 * of.MAX_PATTERN_TOKENS))
                answer[-other] = 2
                check_sequence_repetition(answer, params)
                most = max(most, Counted.looked)
    assert 100 < most < 8_000


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/a.png", "https://example.com/a.png"])
def test_an_engine_without_a_list_of_hosts_fetches_nothing(url: str) -> None:
    from vllm.multimodal.media import MediaConnector

    connector = MediaConnector(allowed_media_domains=NO_HOSTS)
    with pytest.raises(ValueError, match="must be from one of the allowed domains"):
        connector.fetch_image(url)


def test_a_listed_host_cannot_redirect_an_engine_to_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.multimodal.media import MediaConnector

    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("location", f"http://localhost:{server.server_port}/inside")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    for name, value in ENGINE_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connector = MediaConnector(allowed_media_domains=["127.0.0.1"])
        with pytest.raises(Exception, match=r"\S"):
            connector.fetch_image(f"http://127.0.0.1:{server.server_port}/a.png")
        server.shutdown()
    assert asked == ["/a.png"]


def test_a_client_error_that_a_stream_returns_is_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.exceptions import VLLMValidationError

    from deployments.engine.vllm.api_server import streams

    def meet(logger: logging.Logger, error: Exception) -> None:
        try:
            raise error
        except type(error):
            logger.exception("Error in stream generator.")

    streams.log_no_mistakes()
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    for name in streams.LOGGERS:
        logger = import_module(name).logger
        assert logger.name == name
        meet(logger, VLLMValidationError("what the client has sent"))
        assert not caplog.records
        meet(logger, RuntimeError("ours"))
        assert len(caplog.records) == 1
        caplog.clear()


def test_vllm_reads_no_files_and_keeps_no_items() -> None:
    """Otherwise a gateway refuses what an engine would serve."""
    from vllm.entrypoints.openai.responses.utils import construct_input_messages
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers.chat_utils import MM_PARSER_MAP

    assert not MM_PARSER_MAP.keys() & set(kept_elsewhere.FILES)
    items: list[Any] = [{"id": "msg_1", "type": kept_elsewhere.ITEM_REFERENCE}, {"id": "msg_1"}]
    for item in items:
        with pytest.raises((VLLMValidationError, AttributeError, KeyError)):
            construct_input_messages(request_input=[item])
