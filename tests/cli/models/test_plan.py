"""`antefix plan`: what it answers, and what it says of a command line that it cannot answer."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.main import app
from deployments.fleet.fleet_file import parse_fleet
from tests.shipped import PLANNED_FILES
from tests.some import some

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
LOAD = ("--context-tokens", "4096", "--concurrency", "10")


def plan(*arguments: str, model: str = LLAMA, gpu: str = "h100") -> Result:
    return CliRunner().invoke(app, ["plan", model, "--gpu", gpu, *arguments])


@pytest.fixture(autouse=True)
def nothing_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTEFIX_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_the_table_marks_the_chosen_option() -> None:
    done = plan(*LOAD)
    assert done.exit_code == ExitCode.OK
    assert "bf16 *" in done.stdout
    assert "docs/planning.md" in done.stderr


def test_json_is_one_object() -> None:
    told = json.loads(plan(*LOAD, "-o", "json").stdout)
    assert told["model"] == LLAMA
    assert sum(option["chosen"] for option in told["options"]) == 1


def test_stdout_has_only_the_fleet_file() -> None:
    done = plan(*LOAD, "-o", "fleet")
    fleet = parse_fleet(done.stdout, check_engine_args=False)
    assert fleet.pools["llama-3-1-8b-instruct"].model == LLAMA


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu"])
def test_the_planned_fleet_file_bounds_speculation_if_requested(method: str) -> None:
    def pool(*draft: str) -> dict[str, Any]:
        done = plan(*LOAD, "-o", "fleet", *draft)
        assert done.exit_code == ExitCode.OK, done.output
        parse_fleet(done.stdout, check_engine_args=False)
        (found,) = yaml.safe_load(done.stdout)["pools"].values()
        return dict(found)

    assert "speculative_config" not in pool()["engine_args"]
    planned = pool("--draft", method)
    config = planned["engine_args"]["speculative_config"]
    assert (config["method"], planned["speculation"]) == (method, {"when_slower": "stop"})
    *_, (_, most, _) = config["num_speculative_tokens_per_batch_size"]
    assert most == planned["engine_args"]["max_num_seqs"]


def test_a_draft_is_counted_by_its_own_shape() -> None:
    told = json.loads(
        plan(*LOAD, "-o", "json", "--draft", "meta-llama/Llama-3.2-1B-Instruct").stdout
    )
    assert told["draft"] is None  # 16 layers without CUDA graphs cost more than they gain
    large = json.loads(
        plan(
            *LOAD,
            *("-o", "json", "--draft", "meta-llama/Llama-3.2-1B-Instruct"),
            model="meta-llama/Llama-3.1-70B-Instruct",
        ).stdout
    )
    assert large["draft"]["method"] == "draft_model"
    assert large["draft"]["weight_bytes_per_gpu"] > 500 << 20


def test_an_eagle_head_of_the_model_is_planned_as_a_draft() -> None:
    head = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
    told = json.loads(plan(*LOAD, "-o", "json", "--draft", head).stdout)
    assert (told["draft"]["method"], told["draft"]["model"]) == ("eagle3", head)


def test_the_plan_shows_a_long_prompt_with_its_ttft() -> None:
    lengths = ("--prompt-tokens", "1000", "--answer-tokens", "256")
    short, long = (
        json.loads(plan(*LOAD, *lengths, *more, "-o", "json").stdout)["options"][0]["ttft_p99_s"]
        for more in ((), ("--long-prompt-tokens", "3000"))
    )
    assert short < long
    told = plan(*LOAD, *lengths, "--long-prompt-tokens", "3000").stdout
    assert "p99 prompt length: 3000 tokens" in told
    assert "--long-prompt-tokens" in plan(*LOAD, *lengths).stderr


def test_an_unknown_draft_is_reported() -> None:
    done = plan(*LOAD, "--draft", "a/draft")
    assert done.exit_code == ExitCode.FAILED
    assert "no config.json of 'a/draft' is on this machine" in done.stderr


def test_the_embedded_model_needs_no_download() -> None:
    assert plan(*LOAD, model="embedded").exit_code == ExitCode.OK


def test_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "hidden_size": 1024,
                "num_hidden_layers": 4,
                "num_attention_heads": 8,
                "intermediate_size": 4096,
                "vocab_size": 32000,
            }
        )
    )
    told = json.loads(plan(*LOAD, "-o", "json", model=str(tmp_path)).stdout)
    assert told["architecture"] == "unknown"


def test_without_lengths_the_mean_request_fills_the_context() -> None:
    text = plan(*LOAD).stdout
    assert "mean 3584 + 512 tokens" in text
    assert (
        "mean 3000 + 512 tokens"
        in plan(*LOAD, "--prompt-tokens", "3000", "--answer-tokens", "512").stdout
    )
    assert "mean 3000 + 1096 tokens" in plan(*LOAD, "--prompt-tokens", "3000").stdout


def test_the_price_option_replaces_the_known_price() -> None:
    known = json.loads(plan(*LOAD, "-o", "json").stdout)
    free = json.loads(plan(*LOAD, "-o", "json", "--price-per-gpu-hour", "0").stdout)
    assert known["price_per_gpu_hour"] == 3.0
    assert free["cost_per_million_tokens"] == 0


def test_a_gpu_without_a_known_price_has_no_cost() -> None:
    told = json.loads(plan(*LOAD, "-o", "json", gpu="l40s").stdout)
    assert told["cost_per_million_tokens"] is None
    assert "cost" not in plan(*LOAD, gpu="l40s").stdout


def test_an_fp8_cache_holds_twice_as_many_tokens() -> None:
    sixteen, eight = (
        json.loads(plan(*LOAD, "-o", "json", "--kv-cache-dtype", dtype).stdout)["options"][0]
        for dtype in ("auto", "fp8")
    )
    token = "kv_bytes_per_token_and_gpu"
    assert sixteen[token] == 2 * eight[token]


def test_the_plan_shows_how_many_tokens_the_host_tier_holds() -> None:
    assert "host tier" not in plan(*LOAD).stdout
    # 32 layers, with 8 keys and 8 values of 128 numbers of 16 bits: 128 KiB per token
    told = plan(*LOAD, "--host-bytes", "64Gi").stdout
    assert "host tier: 524,288 tokens per replica in 64 GiB of the host's memory" in told


def test_the_gpus_of_a_replica_share_the_host_tier() -> None:
    llama = "meta-llama/Llama-3.1-70B-Instruct"
    done = plan(*LOAD, "--host-bytes", "64GiB", "-o", "json", model=llama)
    for option in some(json.loads(done.stdout)["options"]):
        token = option["kv_bytes_per_token_and_gpu"] * option["tensor_parallel"]
        assert 0 <= 2**36 - option["host_tokens_per_replica"] * token < 16 * token


def test_the_planned_fleet_file_has_the_host_tier() -> None:
    done = plan(*LOAD, "--host-bytes", "64Gi", "-o", "fleet")
    (pool,) = parse_fleet(done.stdout, check_engine_args=False).pools.values()
    assert pool.kv_tiers is not None and pool.kv_tiers.host_bytes == 2**36


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--context-tokens", "4096"), "--concurrency"),
        ((*LOAD, "--slo", "ttft=fast"), "ttft=2s,tpot=50ms"),
        ((*LOAD, "--slo", "tpot=0.1"), "ttft=2s,tpot=50ms"),
        ((*LOAD, "--slo", "ttft=1,p99=2"), "ttft=2s,tpot=50ms"),
        ((*LOAD, "--slo", "ttft=-1"), "ttft=2s,tpot=50ms"),
        ((*LOAD, "--kv-cache-dtype", "int8"), "int8_per_token_head"),
        ((*LOAD, "--host-bytes", "much"), "64Gi"),
        ((*LOAD, "--host-bytes", "1"), "64Gi"),
        ((*LOAD, "--output", "256"), "--answer-tokens"),
        ((*LOAD, "--fleet"), "-o fleet"),
    ],
)
def test_the_error_for_a_wrong_command_line_shows_a_valid_one(
    arguments: tuple[str, ...], words: str
) -> None:
    done = plan(*arguments)
    assert done.exit_code == ExitCode.USAGE
    assert words in done.output


@pytest.mark.parametrize(
    ("model", "gpu", "words"),
    [
        ("someone/unheard-of", "h100", "--download"),
        (LLAMA, "abacus", "a100-80g"),
        ("meta-llama/Llama-3.1-405B-Instruct", "l4", "GiB per GPU are missing"),
    ],
)
def test_an_impossible_plan_reports_the_reason(model: str, gpu: str, words: str) -> None:
    done = plan(*LOAD, "-o", "json", model=model, gpu=gpu)
    assert done.exit_code == ExitCode.FAILED
    error = json.loads(done.stdout)["error"]
    assert words in f"{error['message']}; {error['remedy']}"


def test_every_option_named_on_the_page_exists() -> None:
    text = (Path(__file__).parents[3] / "docs" / "planning.md").read_text()
    named = {
        word for row in text.splitlines() if row.startswith("| `--") for word in row.split("`")
    }
    told = CliRunner().invoke(app, ["plan", "--help"], terminal_width=200).output
    assert {name for name in named if name.startswith("--")} <= {
        word.strip(",│ ") for word in told.split()
    }


def test_a_fleet_file_is_plain_yaml() -> None:
    assert set(yaml.safe_load(plan(*LOAD, "-o", "fleet").stdout)) == {"name", "pools"}


@pytest.mark.parametrize("file", PLANNED_FILES, ids=lambda file: file.stem)
def test_planned_values_match_the_output_of_the_command_in_their_comment(file: Path) -> None:
    text = file.read_text()
    command = re.search(r"^#   antefix (plan (?:.*\\\n)*.*-o fleet)$", text, re.M)
    assert command is not None
    done = CliRunner().invoke(app, re.sub(r"\\\n#", "", command[1]).split())
    assert done.exit_code == ExitCode.OK, done.output
    (planned,) = yaml.safe_load(done.stdout)["pools"].values()
    (written,) = yaml.safe_load(text)["fleet"]["pools"].values()
    planned["engine_args"] = {**written["engine_args"], **planned["engine_args"]}
    renamed = {key: written[key] for key in ("served_model_name", "resources")}
    assert written == {**planned, **renamed}


@pytest.mark.parametrize("file", PLANNED_FILES, ids=lambda file: file.stem)
def test_planned_values_name_the_weights_that_the_plan_prefers(file: Path) -> None:
    text = " ".join(file.read_text().replace("\n#", "").split())
    size, gpu = re.findall(r"Llama-3.1-(\d+B)-Instruct-AWQ-INT4 --gpu (\w+)", text)[0]
    load = text.partition(f"--gpu {gpu} ")[2].partition(" --draft")[0].replace("\\ ", "").split()
    base = f"meta-llama/Llama-3.1-{size}-Instruct"
    told = json.loads(plan(*load, "-o", "json", model=base, gpu=gpu).stdout)
    (chosen,) = [option for option in told["options"] if option["chosen"]]
    gpus = {1: "one GPU", 2: "two GPUs"}[chosen["tensor_parallel"]]
    assert f"antefix plan chooses {chosen['weights']} on {gpus}." in text
