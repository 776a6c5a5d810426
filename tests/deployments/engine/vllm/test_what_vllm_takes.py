"""What vLLM takes from clients, and the errors with which it refuses."""

import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from deployments.app import ENGINE_ENVIRONMENT
from deployments.engine.vllm import prompt_length
from deployments.engine.vllm.adapter import NO_HOSTS
from deployments.gateway.attempt.engine_errors import EngineError
from deployments.gateway.checks import kept_elsewhere
from deployments.gateway.intake.errors import from_engine

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def test_a_dead_engine_says_so_in_the_words_that_gateways_look_for() -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    assert EngineError(500, str(EngineDeadError()).encode()).is_dead


@pytest.mark.parametrize("prompt", [{"prompt": "a" * 999}, {"prompt_token_ids": [1] * 11}])
def test_a_prompt_that_is_too_long_is_named_so_that_gateways_know(prompt: Any) -> None:
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers.params import TokenizeParams

    limits = TokenizeParams(max_total_tokens=10)
    check = limits.apply_pre_tokenization if "prompt" in prompt else limits.apply_post_tokenization
    with pytest.raises(VLLMValidationError) as refused:
        check(SimpleNamespace(max_chars_per_token=4, truncation_side="left"), prompt)
    told = create_error_response(refused.value).model_dump_json().encode()
    assert from_engine(400, told, "id").code == "context_length_exceeded"


def test_too_many_output_tokens_are_named_as_the_client_named_them() -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers.params import TokenizeParams

    with pytest.raises(VLLMValidationError) as refused:
        TokenizeParams(10, 11, max_output_tokens_param="max_completion_tokens")
    assert refused.value.parameter == "max_completion_tokens"


def test_a_prompt_that_fills_the_context_is_named_as_a_longer_one() -> None:
    from vllm.exceptions import VLLMValidationError

    prompt_length.refuse_by_name()
    for api in ("chat_completion", "completion", "responses"):
        serving = import_module(f"vllm.entrypoints.openai.{api}.serving")
        assert serving.get_max_tokens(10, 5, 9, {}, truncate_prompt_tokens=None) == 1
        with pytest.raises(VLLMValidationError) as refused:
            serving.get_max_tokens(10, 5, 10, {}, truncate_prompt_tokens=None)
        assert refused.value.parameter == "input_tokens"


def test_a_response_names_a_prompt_that_fills_the_context_as_others_do() -> None:
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    prompt_length.refuse_by_name()
    serving = object.__new__(OpenAIServingResponses)
    serving.model_config = SimpleNamespace(max_model_len=10)
    serving._extract_prompt_len = lambda prompt: prompt
    serving.create_error_response = create_error_response
    assert serving._validate_generator_input(9) is None
    assert serving._validate_generator_input(10).error.param == "input_tokens"


# Safe in anybody's hands: they change one request's own answer, and vLLM bounds what they hold.
FOR_CLIENTS = """
add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template
chat_template_kwargs continue_final_message data data_1 data_2 dimensions documents echo embed_dtype
enable_response_messages encoding_format endianness frequency_penalty ignore_eos include
include_reasoning include_stop_str_in_output input instruction instructions items length_penalty
logit_bias logprob_token_ids logprobs max_completion_tokens max_output_tokens max_tokens
max_tokens_per_doc max_tokens_per_query max_tool_calls media_io_kwargs messages metadata min_p
min_tokens mm_payload mm_processor_kwargs model output_config padding parallel_tool_calls
presence_penalty previous_input_messages prompt prompt_cache_key prompt_embeds prompt_logprobs
queries query reasoning reasoning_effort repetition_detection repetition_penalty request_id
response_format return_mm_kwargs return_prompt_text return_token_ids return_token_offsets
return_token_strs return_tokens_as_token_ids routed_experts_prompt_start seed service_tier
session_id skip_special_tokens spaces_between_special_tokens stop stop_sequences stop_token_ids
store stream stream_interval stream_options structured_outputs suffix system task temperature text
text_1 text_2 thinking thinking_token_budget tokens tool_choice tools top_k top_logprobs top_n top_p
truncate_prompt_tokens truncation truncation_side use_activation use_beam_search user watermarking
"""
# Refused or bounded by `deployments.gateway.checks.engine_fields`.
BOUNDED = """
background ec_transfer_params kv_transfer_params n previous_response_id priority vllm_xargs
"""


def test_of_every_field_it_is_decided_whether_clients_may_set_it() -> None:
    """A field that vLLM adds fails here: let it through, or refuse it, on purpose."""
    from vllm.entrypoints.anthropic import protocol as anthropic
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
    from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
    from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest

    def fields(of: Any) -> set[str]:
        """Of a model, or of a union of some."""
        inside = {name for part in get_args(of) for name in fields(part)}
        return inside | set(getattr(of, "model_fields", ()))

    requests = (
        *(ChatCompletionRequest, CompletionRequest, ResponsesRequest, EmbeddingRequest),
        *(anthropic.AnthropicMessagesRequest, anthropic.AnthropicCountTokensRequest),
        *(ClassificationRequest, PoolingRequest, RerankRequest, ScoreRequest),
    )
    found = [fields(of) for of in (*requests, TokenizeRequest, DetokenizeRequest)]
    assert set().union(*found) == {*FOR_CLIENTS.split(), *BOUNDED.split()}


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

    from deployments.engine.vllm import streams

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
