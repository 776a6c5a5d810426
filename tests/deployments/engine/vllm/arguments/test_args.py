"""What vLLM's own parser takes and refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.engine.vllm.arguments.args import to_cli, with_own_seed
from deployments.fleet.fleet_file import load_fleet, shipped_fleets
from deployments.fleet.settings.engine_args import EngineArgRefused, refused_by_vllm
from tests.weights.planned import ENGINE_ARGS

NO_MODEL = "draft_model needs separate weights"

TAKEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "AWQ": {"quantization": "awq_marlin", "dtype": "float16"},
    "tensor and pipeline parallel": {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
    "an FP8 cache": {"kv_cache_dtype": "fp8_e5m2", "gpu_memory_utilization": 0.9},
    "chunked prefill": {"enable_chunked_prefill": True, "max_num_batched_tokens": "4k"},
    "no prefix caching": {"enable_prefix_caching": False},
    "CUDA graphs": {"enforce_eager": False, "cudagraph_capture_sizes": [1, 2, 4]},
    "compilation": {"compilation_config": {"cudagraph_mode": "FULL"}},
    "eager": {"enforce_eager": True},
    "sleep mode": {"enable_sleep_mode": True},
    "LoRA": {
        "enable_lora": True,
        "max_lora_rank": 16,
        "lora_modules": [{"name": "a", "path": "b"}],
    },
    "n-gram": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}},
    "suffix": {"speculative_config": {"method": "suffix", "suffix_decoding_min_token_prob": 0.2}},
    "draft model": {
        "speculative_config": {"method": "draft_model", "model": "a/b", "num_speculative_tokens": 4}
    },
    "EAGLE": {
        "speculative_config": {"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3}
    },
    "MTP": {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
    "tools": {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
    "a switch off that has no --no- form": {"aggregate_engine_logging": False},
    "null": {"max_model_len": None, "lora_modules": []},
    "what antefix plan writes": ENGINE_ARGS,
}

# engine arguments, then key, message and remedy of the refusal
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "a mistyped flag": (
        {"max_modell_len": 1},
        ("max_modell_len", "vLLM has no such flag", "Did you mean max_model_len?"),
    ),
    "an abbreviated flag": (
        {"max_model": 1},
        ("max_model", "vLLM has no such flag", "Did you mean max_model_len?"),
    ),
    "a --no- form": (
        {"no_enable_prefix_caching": True},
        (
            "no_enable_prefix_caching",
            "vLLM has no such flag",
            "Write enable_prefix_caching: false",
        ),
    ),
    "a dotted flag": (
        {"speculative_config.method": "ngram"},
        (
            "speculative_config.method",
            "vLLM has no such flag",
            "Write speculative_config with the rest as a mapping below it",
        ),
    ),
    "a mistyped quantization": (
        {"quantization": "awqq"},
        ("quantization", "not a value of this flag", "Did you mean awq?"),
    ),
    "a mistyped cache type": (
        {"kv_cache_dtype": "fp9"},
        ("kv_cache_dtype", "not a value of this flag", "Did you mean fp8?"),
    ),
    "a mistyped tool parser": (
        {"tool_call_parser": "hermez"},
        ("tool_call_parser", "not a value of this flag", "Did you mean hermes?"),
    ),
    "text for a number": (
        {"max_model_len": "long"},
        ("max_model_len", "not a whole number", "Write one, such as 4096"),
    ),
    "text for a fraction": (
        {"gpu_memory_utilization": "most"},
        ("gpu_memory_utilization", "not a number", "Write one, such as 0.9"),
    ),
    "more than all memory": (
        {"gpu_memory_utilization": 1.5},
        ("gpu_memory_utilization", "too high", "Write at most 1"),
    ),
    "no GPU": (
        {"tensor_parallel_size": 0},
        ("tensor_parallel_size", "too low", "Write at least 1"),
    ),
    "text for a switch": (
        {"enforce_eager": "yes"},
        ("enforce_eager", "neither true nor false", "Write one of the two"),
    ),
    "a switch for a number": (
        {"seed": True},
        ("seed", "takes a value, not true or false", "Write the value"),
    ),
    "a list for one value": (
        {"max_num_seqs": [1, 2]},
        ("max_num_seqs", "takes one value, not a list", "Write one"),
    ),
    "a list that hides a flag": (
        {"allowed_media_domains": ["a", "--trust-remote-code"]},
        ("allowed_media_domains", "contains a value that starts with -", "Remove the -"),
    ),
    "broken JSON": (
        {"speculative_config": '{"method": }'},
        ("speculative_config", "not valid JSON", "Write it as YAML below the key"),
    ),
    "a mistyped compilation key": (
        {"compilation_config": {"modee": 3}},
        ("compilation_config", "modee: unexpected keyword argument", "See vllm serve --help=all"),
    ),
    "tools without a parser": (
        {"enable_auto_tool_choice": True},
        (
            "enable_auto_tool_choice",
            "--enable-auto-tool-choice requires --tool-call-parser",
            "Change one of them",
        ),
    ),
    "LoRA adapters with LoRA off": (
        {"lora_modules": [{"name": "a", "path": "b"}]},
        ("lora_modules", "LoRA is switched off", "Add enable_lora: true"),
    ),
    "a LoRA adapter without form": (
        {"enable_lora": True, "lora_modules": ["sql"]},
        (
            "lora_modules",
            "not a LoRA adapter",
            "Write a list of {name: sql, path: /adapters/sql}",
        ),
    ),
    "a LoRA rank vLLM has no kernel for": (
        {"enable_lora": True, "max_lora_rank": 7},
        (
            "max_lora_rank",
            "not a value of this flag",
            "vLLM takes 1, 8, 16, 32, 64, 128, 256, 320, 512",
        ),
    ),
    "a mistyped speculative key": (
        {"speculative_config": {"method": "mtp", "num_speculative_token": 1}},
        (
            "speculative_config.num_speculative_token",
            "unknown key",
            "Did you mean num_speculative_tokens?",
        ),
    ),
    "a mistyped speculative method": (
        {"speculative_config": {"method": "eagel3"}},
        ("speculative_config.method", "not a value of this key", "Did you mean eagle3?"),
    ),
    "a draft model without weights": (
        {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 4}},
        ("speculative_config.method", NO_MODEL, "Add model: the id of those weights"),
    ),
    "n-gram without a count": (
        {"speculative_config": {"method": "ngram"}},
        (
            "speculative_config.method",
            "ngram needs num_speculative_tokens",
            "Add it: the number of tokens to draft, such as 4",
        ),
    ),
    "n-gram bounds the wrong way round": (
        {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 4,
                "prompt_lookup_min": 5,
                "prompt_lookup_max": 2,
            }
        },
        ("speculative_config.prompt_lookup_min", "above prompt_lookup_max, 2", "Lower it"),
    ),
    "a suffix tree without depth": (
        {"speculative_config": {"method": "suffix", "suffix_decoding_max_tree_depth": 0}},
        ("speculative_config.suffix_decoding_max_tree_depth", "too low", "Write 1 or more"),
    ),
    "a probability above 1": (
        {"speculative_config": {"method": "suffix", "suffix_decoding_min_token_prob": 1.5}},
        ("speculative_config.suffix_decoding_min_token_prob", "too high", "Write 1 or less"),
    ),
    "no speculation at all": (
        {"speculative_config": {"method": "mtp", "num_speculative_tokens": 0}},
        ("speculative_config.num_speculative_tokens", "too low", "Write more than 0"),
    ),
    "a draft split otherwise than its target": (
        {
            "tensor_parallel_size": 4,
            "speculative_config": {
                "model": "a/b",
                "num_speculative_tokens": 4,
                "draft_tensor_parallel_size": 2,
            },
        },
        (
            "speculative_config.draft_tensor_parallel_size",
            "neither 1 nor tensor_parallel_size, 4",
            "Write one of the two",
        ),
    ),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("ANTEFIX_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def answers(cache: Path) -> dict[str, list[EngineArgRefused]]:
    """vLLM's answer to every case of this file, asked in one go: importing it takes seconds."""
    cases = {**TAKEN, **{case: given for case, (given, _) in REFUSED.items()}}
    for name in shipped_fleets():
        pools = load_fleet(name, check_engine_args=False).pools
        cases |= {f"{name}: {pool}": dict(of.engine_args) for pool, of in pools.items()}
    refused = refused_by_vllm(cases)
    return {case: [each for each in refused if each.pool == case] for case in cases}


@pytest.mark.real
@pytest.mark.parametrize("case", TAKEN)
def test_vllm_accepts_valid_arguments(
    case: str, answers: dict[str, list[EngineArgRefused]]
) -> None:
    assert answers[case] == []


@pytest.mark.real
@pytest.mark.parametrize("case", REFUSED)
def test_vllm_rejects_invalid_arguments(
    case: str, answers: dict[str, list[EngineArgRefused]]
) -> None:
    told = [(each.key, each.message, each.remedy) for each in answers[case]]
    assert told == [REFUSED[case][1]]


@pytest.mark.real
@pytest.mark.parametrize("name", shipped_fleets())
def test_vllm_accepts_the_shipped_fleets(
    name: str,
    answers: dict[str, list[EngineArgRefused]],
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken = list((cache / "engine-args").iterdir())
    fleet = load_fleet(name)
    assert caplog.messages == []
    assert [answers[f"{name}: {pool}"] for pool in fleet.pools] == [[]] * len(fleet.pools)
    assert list((cache / "engine-args").iterdir()) == taken, "it asked of other arguments"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"max-model-len": 2048}, ["--max-model-len=2048"]),
        ({"seed": -1}, ["--seed=-1"]),
        ({"speculative_config": {"method": "mtp"}}, ['--speculative-config={"method": "mtp"}']),
        ({"cudagraph_capture_sizes": [1, 2]}, ["--cudagraph-capture-sizes", "1", "2"]),
        ({"lora_modules": [{"name": "a"}]}, ["--lora-modules", '{"name": "a"}']),
        ({"revision": None, "lora_modules": []}, []),
    ],
)
def test_arguments_become_a_command_line(given: dict[str, Any], words: list[str]) -> None:
    assert to_cli(given) == words


def test_each_engine_has_a_different_seed_unless_one_is_given() -> None:
    given = {"dtype": "float32"}
    one, other = with_own_seed(given), with_own_seed(given)
    assert one["seed"] != other["seed"]
    assert one == {**given, "seed": one["seed"]}
    assert 0 <= one["seed"] < 2**32
    assert with_own_seed({"seed": 0}) == {"seed": 0}
    # the same weights on all replicas
    for key in ("load_format", "load-format"):
        assert with_own_seed({key: "dummy"}) == {key: "dummy"}
