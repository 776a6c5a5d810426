"""The commands against a fake gateway: no Ray, no engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.common.output import answering
from cli.fleet.status_tables import dtypes_in_words
from cli.gateway.chat import MAX_TOKENS
from cli.local.home import FleetState, Home
from cli.local.ports import is_free
from cli.main import app
from deployments.fleet.applications import serve_config
from tests.cli.fake_gateway import KEY, FakeGateway, running
from tests.ports import free_ports
from tests.some import some

FLEET = "name: test\npools: {engine: {model: embedded}}\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTEFIX_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    return Home()


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with running() as gateway:
        yield gateway


@pytest.fixture
def fleet(home: Home, gateway: FakeGateway) -> FakeGateway:
    """The fake gateway, recorded as a fleet that runs on another's Ray cluster."""
    keys = {"api_key": KEY, "engine_secret": "x"}
    (home.folder / "keys.json").write_text(json.dumps(keys))
    home.save_state(state_of(gateway.base_url))
    return gateway


def state_of(base_url: str) -> FleetState:
    return FleetState(
        run_id="none",
        fleet_file="test.yaml",
        fleet_digest="another",
        host="127.0.0.1",
        port=1,
        base_url=base_url,
        model="small",
        drain_timeout_s=1.0,
        started_at=0.0,
        own_ray=False,
        ready=True,
    )


def antefix(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


def written(folder: Path, text: str) -> str:
    file = folder / "fleet.yaml"
    file.write_text(text)
    return str(file)


def test_help_is_printed_without_heavy_imports() -> None:
    code = (
        "import sys, cli.main;"
        "print([m for m in ('ray', 'vllm', 'torch', 'openai') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_lists_the_exit_codes() -> None:
    output = " ".join(antefix("--help").stdout.split())
    assert "3: no fleet is running on this machine" in output


@pytest.mark.parametrize("command", [["status"], ["env"], ["logs"], ["chat", "hello"]])
def test_without_a_fleet_a_command_says_how_to_start_one(home: Home, command: list[str]) -> None:
    result = antefix(*command)
    assert result.exit_code == ExitCode.NOT_RUNNING
    assert result.stdout == ""
    assert "antefix up" in result.stderr


def test_down_without_a_fleet_is_fine(home: Home) -> None:
    result = antefix("down", "-o", "json")
    assert result.exit_code == ExitCode.OK
    assert json.loads(result.stdout) == {"status": "not_running"}


def test_status_shows_every_replica(fleet: FakeGateway) -> None:
    result = antefix("status")
    assert result.exit_code == ExitCode.OK
    for shown in ("engine: small", "abc", "10.0.0.1", "25%", "1.50 s", "512 TOKENS"):
        assert shown in result.stdout


@pytest.mark.parametrize(
    ("index", "shown"),
    [
        ({}, "policy prefix prefix index 0.2 ms TTFT prediction 12% off"),
        ({"answers": False}, "prefix index no answer, placed by load"),
        ({"prompts_known": False}, "prefix index unused, prompts unknown"),
        ({"lookup_p50_ms": None, "ttft_prediction_error": None}, "policy prefix"),
    ],
)
def test_status_shows_how_requests_are_placed(
    fleet: FakeGateway, index: dict[str, Any], shown: str
) -> None:
    fleet.index |= index
    assert shown in " ".join(antefix("status").stdout.split())


@pytest.mark.parametrize(
    ("admission", "shown"),
    [
        ({}, "TTFT SLO interactive 5 s"),
        ({"slo": {}}, "TTFT SLO none"),
        ({"queued": 3, "oldest_queued_s": 7.4}, "queued 3, oldest 7 s"),
        ({"held": 2}, "held 2 until a replica is up"),
        ({"outage": {"for_s": 3.0, "up_in_s": None}}, "outage no replica"),
        (
            {"outage": {"for_s": 3.0, "up_in_s": 96.6}},
            "outage no replica, next in 97 s",
        ),
        ({"overflowing": True, "overflow_share": 0.25}, "overflow 25%"),
    ],
)
def test_status_shows_how_requests_are_admitted(
    fleet: FakeGateway, admission: dict[str, Any], shown: str
) -> None:
    fleet.admission |= admission
    assert shown in " ".join(antefix("status").stdout.split())


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ((True, None, None), "speculation not measured yet"),
        ((True, 2.34, 1.81), "speculation 2.3 tokens per pass, 1.81 times the speed"),
        ((False, 1.1, 0.6), "0.60 times the speed, off on 1 of 1"),
    ],
)
def test_status_shows_the_speedup_of_speculation(
    fleet: FakeGateway, known: tuple[Any, ...], shown: str
) -> None:
    fleet.speculation = dict(zip(("on", "tokens_per_pass", "speedup"), known, strict=True))
    assert shown in " ".join(antefix("status").stdout.split())


def test_status_shows_that_loads_are_hidden_from_the_key(fleet: FakeGateway) -> None:
    fleet.told |= dict.fromkeys(("node_ip", "url", "running", "waiting", "kv_use"))
    fleet.told |= {"predicted_ttft_s": None}
    fleet.admission |= {"queued": 1, "oldest_queued_s": None, "held": None}
    shown = " ".join(antefix("status").stdout.split())
    assert "loads hidden" in shown and "queued 1" in shown and "abc" in shown


@pytest.mark.parametrize(("dtype", "shown"), [("float32", True), (None, False)])
def test_status_shows_the_data_type_of_the_engines(
    fleet: FakeGateway, dtype: str | None, shown: bool
) -> None:
    fleet.told["dtype"] = dtype
    assert ("data type float32" in " ".join(antefix("status").stdout.split())) is shown


def test_engines_of_different_dtypes_are_named() -> None:
    pools = [{"replicas": [{"dtype": dtype} for dtype in ("float32", "bfloat16", "float32", None)]}]
    assert dtypes_in_words(*pools) == "bfloat16 and float32"
    assert dtypes_in_words({"replicas": [{}]}) == ""  # a gateway of an older release


def test_status_omits_speculation_if_it_is_not_configured(fleet: FakeGateway) -> None:
    result = antefix("status")
    assert result.exit_code == ExitCode.OK
    assert "abc" in result.stdout  # the replica that would have it
    assert "speculation" not in result.stdout


def test_a_pool_that_is_scaled_to_zero_is_fine(fleet: FakeGateway) -> None:
    fleet.states, fleet.target = {}, 0
    result = antefix("status")
    assert result.exit_code == ExitCode.OK
    assert "scaled to zero" in result.stdout


def test_without_redis_status_shows_the_replicas_and_no_loads(fleet: FakeGateway) -> None:
    fleet.redis_is_away = True
    result = antefix("status")
    assert result.exit_code == ExitCode.OK
    (row,) = (line for line in result.stdout.splitlines() if "abc" in line)
    assert row.split() == ["abc", "unknown", "10.0.0.1", "?", "?", "?", "?"]
    assert "Redis does not answer" in " ".join(result.stdout.split())


def test_status_prints_tables_only(fleet: FakeGateway) -> None:
    """Each line is a title, or a cell and what the columns separate from it."""
    fleet.admission |= {"queued": 1, "oldest_queued_s": 2.0, "outage": {"up_in_s": 3.0}}
    lines = some(line for line in antefix("status").stdout.splitlines() if line.strip())
    prose = [line for line in lines if "; " in line or line.rstrip().endswith((".", ";"))]
    assert not prose
    titles = [line.strip() for line in lines if "  " not in line.strip() and "─" not in line]
    assert titles == ["test", "engine: small"]


def test_status_wide_adds_the_data_type_and_the_address(fleet: FakeGateway) -> None:
    fleet.told |= {"dtype": "float32", "url": "http://e"}
    narrow, wide = antefix("status").stdout, antefix("status", "-o", "wide").stdout
    assert "DTYPE" not in narrow and "URL" in wide and "DTYPE" in wide


def test_status_as_json_is_one_object(fleet: FakeGateway) -> None:
    answer = json.loads(antefix("status", "-o", "json").stdout)
    assert answer["base_url"] == fleet.base_url
    assert answer["pools"]["engine"]["replicas"][0]["running"] == 2


def test_a_pool_without_a_running_replica_is_not_ready(fleet: FakeGateway, tmp_path: Path) -> None:
    fleet.states = {"STARTING": 1}
    result = antefix("status")
    assert result.exit_code == ExitCode.NOT_READY
    assert "1 STARTING of 1" in result.stdout
    calibrated = antefix("calibrate", str(tmp_path / "engine.json"))
    assert calibrated.exit_code == ExitCode.NOT_READY
    assert "the pool engine has no running replica" in calibrated.stderr


def test_calibrate_with_a_key_that_cannot_see_addresses_fails(
    fleet: FakeGateway, tmp_path: Path
) -> None:
    fleet.told["url"] = None
    result = antefix("calibrate", str(tmp_path / "engine.json"))
    assert result.exit_code == ExitCode.FAILED
    assert "gateway.tenants.default.operator" in result.stderr


@pytest.mark.parametrize("command", ["status", "calibrate engine.json", "profile", "adapter list"])
def test_a_gateway_that_does_not_answer_is_unreachable(home: Home, command: str) -> None:
    home.save_state(state_of(f"http://127.0.0.1:{free_ports(1)[0]}/v1"))
    result = antefix(*command.split(), "-o", "json")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert json.loads(result.stdout)["error"]["code"] == "unreachable"


def test_doctor_reports_a_fleet_that_does_not_answer_as_a_problem(home: Home) -> None:
    home.save_state(state_of(f"http://127.0.0.1:{free_ports(1)[0]}/v1"))
    result = antefix("doctor")
    assert result.exit_code == ExitCode.FOUND
    assert "does not answer" in result.stdout


def test_a_fleet_that_is_starting_is_not_ready(home: Home) -> None:
    state = state_of(f"http://127.0.0.1:{free_ports(1)[0]}/v1")
    home.save_state(replace(state, ready=False))
    result = antefix("status")
    assert result.exit_code == ExitCode.NOT_READY
    assert "the fleet is still starting" in result.stderr


def test_a_shell_can_evaluate_the_output_of_env(fleet: FakeGateway) -> None:
    script = antefix("env").stdout + 'printf %s "$OPENAI_BASE_URL $OPENAI_API_KEY"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{fleet.base_url} {KEY}"


@pytest.mark.parametrize("arguments", [["Where?"], []])
def test_chat_answers_one_message(fleet: FakeGateway, arguments: list[str]) -> None:
    result = antefix("chat", "--system", "Be brief.", *arguments, stdin="Where?")
    assert result.stdout == "Paris.\n"
    assert fleet.asked[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where?"},
    ]


@pytest.mark.parametrize("command", ["chat Where?", "verify"])
def test_an_api_without_models_is_no_reason_to_name_one(
    home: Home, gateway: FakeGateway, command: str
) -> None:
    gateway.has_models = False
    result = antefix(*command.split(), "--base-url", gateway.base_url, "--api-key", KEY)
    assert result.exit_code == ExitCode.FAILED
    assert "lists no models" in result.stderr and "--model" not in result.stderr
    assert "check that the API key may use a model" in result.stderr


def test_chat_works_with_any_openai_api_and_its_first_model(
    home: Home, gateway: FakeGateway
) -> None:
    result = antefix("chat", "--base-url", gateway.base_url, "Where?")
    assert result.stdout == "Paris.\n"
    assert gateway.asked[0]["model"] == "small"


@pytest.mark.parametrize(
    ("arguments", "bound"), [((), MAX_TOKENS), (("--max-tokens", "2000"), 2000)]
)
def test_chat_limits_the_length_of_answers(
    fleet: FakeGateway, arguments: tuple[str, ...], bound: int
) -> None:
    result = antefix("chat", *arguments, "Where?")
    assert fleet.asked[0]["max_tokens"] == bound
    assert result.stderr == ""


def test_chat_reports_that_an_answer_was_truncated(fleet: FakeGateway) -> None:
    fleet.ending = "length"
    result = antefix("chat", "--max-tokens", "3", "Where?")
    assert result.stdout == "Paris.\n"
    assert "cut after 3 tokens; --max-tokens" in result.stderr


def test_an_error_of_the_api_is_one_line(fleet: FakeGateway) -> None:
    result = antefix("chat", "--model", "large", "Where?")
    assert result.exit_code == ExitCode.FAILED
    assert "no such model" in result.stderr
    assert "Traceback" not in result.stderr


def test_up_is_refused_while_another_fleet_runs(
    fleet: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.fleet.fleet_file.refused_by_vllm", lambda _: [])
    result = antefix("up", written(tmp_path, FLEET), "-o", "json")
    assert result.exit_code == ExitCode.ALREADY_RUNNING
    assert "antefix down" in json.loads(result.stdout)["error"]["remedy"]


def test_up_on_a_taken_port_names_the_port_and_the_remedy(
    home: Home, gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.fleet.fleet_file.refused_by_vllm", lambda _: [])
    result = antefix("up", written(tmp_path, FLEET), "--port", str(gateway.port))
    assert result.exit_code == ExitCode.PORT_TAKEN
    assert str(gateway.port) in result.stderr
    assert "gateway.port" in result.stderr
    assert home.state() is None


def test_up_on_another_cluster_needs_a_redis_that_its_nodes_can_reach(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.fleet.fleet_file.refused_by_vllm", lambda _: [])
    result = antefix("up", written(tmp_path, FLEET), "--address", "10.0.0.1:6379")
    assert result.exit_code == ExitCode.FAILED
    assert "redis.url" in result.stderr


def test_config_check_reports_every_problem(home: Home, tmp_path: Path) -> None:
    wrong = written(tmp_path, "name: A\npools: {engine: {model: embedded, replica: 1}}\n")
    result = antefix("config", "check", wrong, "--no-engine-args", "-o", "json")
    assert result.exit_code == ExitCode.INVALID_FILE
    problems = json.loads(result.stdout)["error"]["problems"]
    assert [problem["path"] for problem in problems] == ["name", "pools.engine.replica"]


def test_config_show_fills_the_defaults_in(home: Home, tmp_path: Path) -> None:
    result = antefix("config", "show", written(tmp_path, FLEET))
    assert "served_model_name: smollm2-135m-instruct" in result.stdout


def test_config_serve_is_for_ray_serve_and_reads_no_secret(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    text = "name: test\npools: {engine: {model: embedded, env: {HF_TOKEN: '${TOKEN}'}}}\n"
    printed = antefix("config", "serve", written(tmp_path, text)).stdout
    assert "${TOKEN}" in printed and "secret" not in printed
    assert yaml.safe_load(printed) == serve_config(yaml.safe_load(text))


def test_config_reference_is_the_reference(home: Home) -> None:
    assert antefix("config", "reference").stdout.startswith("# The fleet file")


def test_an_unexpected_error_is_one_line_and_a_logged_traceback(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Home) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(Home, "state", fail)
    result = antefix("env")
    assert result.exit_code == ExitCode.FAILED
    assert "unforeseen" in result.stderr
    assert "Traceback" not in result.stderr
    assert "ZeroDivisionError" in (home.logs / "antefix-errors.log").read_text()


def test_a_closed_pipe_ends_a_command_without_an_error(fleet: FakeGateway, home: Home) -> None:
    (home.logs / "redis.log").write_text("a line\n" * 100_000)
    command = [sys.executable, "-m", "cli.main", "logs", "--tail", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as logs:
        assert logs.stdout is not None and logs.stderr is not None
        assert logs.stdout.readline() == b"redis   | a line\n"
        logs.stdout.close()
        assert logs.stderr.read() == b""
    assert logs.returncode == 1
    assert not (home.logs / "antefix-errors.log").exists()


def test_the_debug_mode_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTEFIX_DEBUG", "1")
    with pytest.raises(ZeroDivisionError), answering():
        raise ZeroDivisionError


def test_a_port_is_free_until_a_process_listens(gateway: FakeGateway) -> None:
    assert not is_free("127.0.0.1", gateway.port)
    assert is_free("127.0.0.1", free_ports(1)[0])
