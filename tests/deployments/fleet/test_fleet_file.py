"""Fleet files that load, and what they then mean."""

from pathlib import Path
from typing import Any

import pytest

from deployments.fleet import fleet_file
from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import (
    FleetError,
    check_text,
    load_fleet,
    parse_fleet,
    shipped_fleets,
)
from deployments.fleet.settings.engine_args import EngineArgRefused
from deployments.fleet.settings.redis_url import refusal_of
from deployments.fleet.weights_check import WeightsCheck
from observability.alerts.slo_file import SHIPPED, load
from weights.kernels.finding import Finding

SMALLEST = "name: small\npools:\n  engine:\n    model: embedded\n"


def fleet_of(text: str) -> Fleet:
    return parse_fleet(text, check_engine_args=False)


def with_pool(lines: str) -> str:
    """The smallest fleet with more `lines` in its pool; they begin on line 5."""
    return SMALLEST + "".join(f"    {line}\n" for line in lines.splitlines())


def with_redis(url: str) -> str:
    return f"{SMALLEST}redis:\n  url: {url}\n"


def test_the_error_for_a_missing_file_lists_the_shipped_fleets() -> None:
    with pytest.raises(FleetError) as caught:
        load_fleet("lapto", check_engine_args=False)
    assert str(caught.value) == (
        "lapto: no such fleet file. Did you mean laptop? Built-in fleets: a100, laptop;"
        " for another fleet write its path, ./my.yaml."
    )


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(b"name: a\nhost: \xff\n")
    with pytest.raises(FleetError, match=r"fleet\.yaml:2: not UTF-8\. Save the file as UTF-8\."):
        load_fleet(file, check_engine_args=False)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="cannot be read: is a directory"):
        load_fleet(tmp_path, check_engine_args=False)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + SMALLEST.encode())
    assert load_fleet(file, check_engine_args=False).name == "small"


@pytest.mark.parametrize("name", shipped_fleets())
def test_a_bare_name_selects_a_shipped_fleet(name: str) -> None:
    assert load_fleet(name, check_engine_args=False).name == name


def test_the_laptop_fleet_has_two_engines_and_one_to_overflow_to() -> None:
    pools = load_fleet("laptop", check_engine_args=False).pools
    assert {pool.served_model_name: pool.replicas for pool in pools.values()} == {
        "smollm2-135m-instruct": 2,
        "smollm2-135m-small": 1,
    }
    overflow = pools["chat"].overflow
    assert overflow is not None and overflow.to == "small"


def test_the_a100_fleet_splits_its_large_model_over_four_gpus() -> None:
    pool = load_fleet("a100", check_engine_args=False).pools["llama-70b"]
    assert (pool.tensor_parallel, pool.pipeline_parallel, pool.world_size) == (4, 1, 4)
    assert pool.resources.gpus is None


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("embedded", "smollm2-135m-instruct"),
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("gpt2", "gpt2"),
        ("/models/llama/", "llama"),
        ("./here", "here"),
        ("s3://bucket/llama", "llama"),
    ],
)
def test_a_model_is_served_under_its_last_part(model: str, name: str) -> None:
    assert fleet_of(SMALLEST.replace("embedded", model)).pools["engine"].served_model_name == name


def test_null_and_an_empty_section_stand_for_the_default() -> None:
    written = fleet_of(with_pool("env:\nreplicas: null\nresources:") + "gateway:\nredis:\n")
    assert written == fleet_of(SMALLEST)


def test_hyphens_in_engine_args_become_underscores() -> None:
    fleet = fleet_of(with_pool("engine_args: {tensor-parallel-size: 2}"))
    assert fleet.pools["engine"].tensor_parallel == 2


def test_lora_adapters_are_known_by_name() -> None:
    fleet = fleet_of(with_pool("engine_args: {lora_modules: [{name: sql, path: /a}, 'fr=/b']}"))
    assert fleet.pools["engine"].model_names == ("smollm2-135m-instruct", "sql", "fr")


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "rediss://user:p%40ss@h.example:6380/3",
        "redis://[::1]:6379/0",
        "unix:///run/redis.sock?db=1",
        "unix://user:pass@/run/redis.sock",
        "redis+sentinel://u:p@a:26379,b:26379/mymaster/0",
        "rediss+sentinel://a/mymaster",
        "redis+cluster://u:p@a:7000,b:7001",
        "rediss+cluster://a",
        "rediss+cluster://a:1,b:2?ssl_ca_certs=/ca.pem&ssl_cert_reqs=none",
        "rediss+sentinel://:p@a/main/0?ssl_ca_certs=/ca.pem&sentinel_password=q",
        "redis+sentinel://:p@a/main?socket_keepalive=true",
    ],
)
def test_every_kind_of_redis_address_is_accepted(url: str) -> None:
    assert fleet_of(with_redis(url)).redis.url == url


def test_variables_are_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFX_PASSWORD", "p@ss/word")
    monkeypatch.setenv("AFX_HOST", "redis.example:6380")
    text = with_redis("redis://me:${AFX_PASSWORD}@${AFX_HOST}/1")
    fleet = fleet_of(text.replace("embedded\n", "embedded\n    env: {T: '<${AFX_HOST}>$${x}'}\n"))
    assert fleet.redis.url == "redis://me:p%40ss%2Fword@redis.example:6380/1"
    assert fleet.pools["engine"].env == {"T": "<redis.example:6380>${x}"}


def test_variables_in_other_keys_are_not_replaced() -> None:
    fleet = fleet_of(with_pool("engine_args: {chat_template: 'x${AFX_UNSET}'}"))
    assert fleet.pools["engine"].engine_args == {"chat_template": "x${AFX_UNSET}"}


def test_a_shown_fleet_holds_no_secret() -> None:
    fleet = fleet_of(
        with_redis("redis://me:hunter2@h/0").replace(
            "embedded\n",
            "embedded\n    env: {HF_TOKEN: hunter2, PROXY: 'http://u:hunter2@p', A: kept}\n",
        )
    )
    shown = fleet.to_yaml()
    assert "hunter2" not in shown
    assert "hunter2" not in repr(fleet.redis)
    assert "redis://me:***@h/0" in shown
    assert "A: kept" in shown


@pytest.mark.parametrize("name", shipped_fleets())
def test_a_shown_fleet_reads_as_the_same_fleet(name: str) -> None:
    fleet = load_fleet(name, check_engine_args=False)
    assert fleet_of(fleet.to_yaml()) == fleet


def test_a_refusal_by_vllm_is_reported_at_the_key_as_the_file_spells_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def refuse(engine_args_of: dict[str, Any]) -> list[Any]:
        asked.update(engine_args_of)
        inner = "speculative_config.methd"
        return [
            EngineArgRefused("engine", "max_model_len", "x", "not a whole number", "Write one"),
            EngineArgRefused("engine", inner, None, "unknown key", "Did you mean method?"),
        ]

    monkeypatch.setattr(fleet_file, "refused_by_vllm", refuse)
    args = "engine_args:\n  max-model-len: x\n  host: a\n  speculative_config:\n    methd: ngram"
    with pytest.raises(FleetError) as caught:
        parse_fleet(with_pool(args))
    assert str(caught.value).splitlines() == [
        "fleet.yaml:6: pools.engine.engine_args.max-model-len = x: not a whole number. Write one.",
        "fleet.yaml:7: pools.engine.engine_args.host: Antefix sets this itself."
        " The gateway listens for HTTP, and the engine does not."
        " Set gateway.host and gateway.port.",
        "fleet.yaml:9: pools.engine.engine_args.speculative_config.methd: unknown key."
        " Did you mean method?",
    ]
    assert "host" not in asked["engine"]


@pytest.mark.parametrize(
    ("key", "line"), [("max-model-len", 6), ("max_model_len", 6), ("max_num_seqs", 5)]
)
def test_a_finding_is_shown_at_the_line_of_its_key_however_that_is_spelled(
    monkeypatch: pytest.MonkeyPatch, key: str, line: int
) -> None:
    """One about a key that the file does not set is shown at the section it belongs to."""
    name = key.replace("-", "_")
    at = f"engine_args.{name}"
    finding = Finding("dimensions", True, at, None, "does not fit", "Lower it")
    check = WeightsCheck([(("pools", "engine", "engine_args", name), finding)])
    monkeypatch.setattr(fleet_file, "check_weights", lambda _: check)
    set_key = key if line == 6 else "max-model-len"
    text = with_pool(f"engine_args:\n  {set_key}: 100\n  block_size: 16")
    with pytest.raises(FleetError, match=f"fleet.yaml:{line}: ") as caught:
        check_text(text, check_engine_args=False)
    assert "does not fit. Lower it." in str(caught.value)


def test_slo_default_uses_the_targets_of_the_shipped_slo_file() -> None:
    fleet = fleet_of(with_pool("slo: default"))
    slo, target = fleet.pools["engine"].slo, load().targets["interactive"]
    assert slo.interactive is not None and slo.batch is not None
    assert slo.interactive.model_dump() == target.model_dump()
    assert slo.throughput == load().throughput
    # and so admission and autoscaling do
    assert slo.by_class()["interactive"].ttft_s == target.ttft_s == 0.5


def test_an_slo_file_is_found_next_to_the_fleet_file(tmp_path: Path) -> None:
    text = SHIPPED.read_text().replace("ttft_s: 0.5,", "ttft_s: 7.5,")
    (tmp_path / "slo.yaml").write_text(text)
    (tmp_path / "fleet.yaml").write_text(with_pool("slo: slo.yaml"))
    fleet = load_fleet(tmp_path / "fleet.yaml", check_engine_args=False)
    assert fleet.pools["engine"].slo.by_class()["interactive"].ttft_s == 7.5


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://h?nonsense=hidden", "an option after the ? is unknown"),
        ("redis+cluster://h?socket_timeout=hidden", "an option after the ? is unknown"),
        ("redis+sentinel://h/main?hidden=1", "an option after the ? is unknown"),
        ("redis://h?ssl_ca_certs=/hidden", "the option ssl_ca_certs needs TLS"),
    ],
)
def test_a_redis_url_with_an_option_that_cannot_work_is_refused(url: str, message: str) -> None:
    refusal = refusal_of(url)
    assert refusal is not None and refusal.message.startswith(message)
    assert "hidden" not in refusal.message + refusal.remedy
