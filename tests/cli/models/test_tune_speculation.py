"""`antefix tune-speculation` on engines whose speed is known: no vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.main import app
from common.errors import Problem
from deployments.offline import speculation_sweep
from deployments.offline.offline_engine import Generated, MadeBy, Tokens

# Tokens per second over those without speculation, by method: so much more for each drafted one.
GAIN = {"ngram": 0.25, "draft_model": -0.2}
NOISE = (0.99, 1.01, 1.0)


class KnownEngine:
    """Answers everything with the same tokens, in the time that its method takes."""

    loaded: ClassVar[list[KnownEngine]] = []
    most_at_once = 0
    runner = "V1"
    speed_as_written: float | None = None

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._asked = 0
        self._switched = False

    @classmethod
    def start(
        cls, model: str, engine_args: Mapping[str, Any], log: Path, env: Mapping[str, str]
    ) -> KnownEngine:
        config = engine_args.get("speculative_config") or {}
        if config.get("model", "").endswith("large"):
            raise Problem("the engine of m failed: no memory", "see the log")
        return cls(config)

    def __enter__(self) -> KnownEngine:
        self.loaded.append(self)
        KnownEngine.most_at_once = max(KnownEngine.most_at_once, len(self.loaded))
        return self

    def __exit__(self, *error: object) -> None:
        self.loaded.remove(self)

    def chat_tokens(self, conversations: list[Any]) -> list[Tokens]:
        return [[1, 2, 3] for _ in conversations]

    def made_by(self) -> MadeBy:
        return MadeBy("", "cpu", False, self.runner, "cpu", "float32")

    def generate(
        self, prompts: list[Tokens], max_tokens: int, *, speculative_tokens: int | None = None
    ) -> Generated:
        self._switched = self._switched or speculative_tokens is not None
        length = self._config.get("num_speculative_tokens", 0)
        drafted = length if speculative_tokens is None else speculative_tokens
        speed = 1 + GAIN.get(self._config.get("method", ""), 0.0) * drafted
        # the warm-up comes first, and is no round
        if not self._switched and length and self._asked and self.speed_as_written:
            speed = self.speed_as_written
        seconds = max_tokens / speed * NOISE[self._asked % len(NOISE)]
        self._asked += 1
        outputs = [[7] * max_tokens for _ in prompts]
        count = max_tokens * len(prompts)
        drafts = count // (1 + drafted) if drafted else 0
        accepted = count - drafts if drafted else 0
        return Generated(outputs, seconds, count, 0.1, 0.1, 1.0, drafts, drafts * drafted, accepted)


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(speculation_sweep, "OfflineEngine", KnownEngine)
    monkeypatch.setattr(KnownEngine, "most_at_once", 0)
    file = tmp_path / "prompts.txt"
    file.write_text("Why is the sky blue?\nCount to ten.\n")
    return file


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"vocab_size": 4}')
    file = tmp_path / "fleet.yaml"
    pool = {"chat": {"model": str(tmp_path / "model")}}
    file.write_text(json.dumps({"name": "test", "pools": pool}))
    return file


def tune(fleet: Path, prompts: Path, *more: str) -> Result:
    words = ["tune-speculation", str(fleet), "--prompts", str(prompts), "--concurrency", "2"]
    return CliRunner().invoke(app, [*words, *more])


def test_the_fastest_is_recommended_as_lines_for_the_fleet_file(fleet: Path, prompts: Path) -> None:
    found = tune(fleet, prompts, "--method", "ngram", "--draft-lengths", "1,4")
    assert found.exit_code == 0, found.output
    assert found.stdout.endswith(
        "pools:\n"
        "  chat:\n"
        "    engine_args:\n"
        "      speculative_config:\n"
        "        method: ngram\n"
        "        prompt_lookup_min: 2\n"
        "        prompt_lookup_max: 5\n"
        "        num_speculative_tokens: 4\n"
    )
    assert "2.00 times the speed" in found.stderr


def test_no_speculation_is_recommended_when_drafts_are_slower(fleet: Path, prompts: Path) -> None:
    draft = str(fleet.parent / "model")
    found = tune(
        fleet, prompts, "--method", "draft_model", "--draft", draft, "--draft-lengths", "1,2"
    )
    assert found.stdout.endswith("recommended: none\n")
    assert "best was draft_model, k=1" in found.stderr


def test_a_setting_that_wins_only_by_luck_is_not_recommended(
    fleet: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KnownEngine, "speed_as_written", 0.9)
    found = tune(fleet, prompts, "--method", "ngram", "--draft-lengths", "1")
    assert found.stdout.endswith("recommended: none\n")
    assert "did not win again" in found.stderr


def test_everything_measured_is_in_the_json(fleet: Path, prompts: Path) -> None:
    found = json.loads(
        tune(fleet, prompts, "--method", "ngram", "--draft-lengths", "1,3", "-o", "json").stdout
    )
    assert [one["drafted"] for one in found["measured"]] == [0, 1, 3]
    assert found["measured"][0]["name"] == "ngram, off"
    assert found["measured"][2]["speedup"]["mean"] == pytest.approx(1.75, rel=0.05)
    assert found["measured"][2]["expected_per_draft"] == pytest.approx(4.0, rel=0.05)
    assert found["measured"][2]["equal_answers"] == 1.0
    assert found["recommended"]["num_speculative_tokens"] == 3
    assert found["confirmed"]["name"] == "ngram, k=3"


def test_a_method_that_fails_to_load_is_reported_and_others_continue(
    fleet: Path, prompts: Path
) -> None:
    draft = fleet.parent / "large"
    draft.mkdir()
    (draft / "config.json").write_text('{"vocab_size": 4}')
    ways = ["--method", "draft_model,ngram", "--draft", str(draft), "--draft-lengths", "1"]
    found = json.loads(tune(fleet, prompts, *ways, "-o", "json").stdout)
    assert found["failed"] == {"draft_model": "the engine of m failed: no memory"}
    assert found["recommended"]["num_speculative_tokens"] == 1


def test_exact_mode_measures_each_draft_length_on_a_separate_engine(
    fleet: Path, prompts: Path
) -> None:
    asked = ["--method", "ngram", "--draft-lengths", "1,3", "--exact", "-o", "json"]
    found = json.loads(tune(fleet, prompts, *asked).stdout)
    assert [one["name"] for one in found["measured"]] == ["ngram, k=1", "ngram, k=3"]
    assert found["measured"][1]["expected_per_draft"] == pytest.approx(4.0, rel=0.05)


def test_a_draft_model_that_vllm_cannot_shorten_gets_an_engine_for_each_length(
    fleet: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KnownEngine, "runner", "V2")
    draft = ("--draft", str(fleet.parent / "model"))
    ways = ["--method", "draft_model,ngram", *draft, "--draft-lengths", "1,3"]
    found = json.loads(tune(fleet, prompts, *ways, "-o", "json").stdout)
    names = [one["name"] for one in found["measured"]]
    drafts = ["draft_model, k=1", "draft_model, k=3"]
    assert names == [*drafts, "ngram, off", "ngram, k=1", "ngram, k=3"]


@pytest.mark.parametrize(("more", "engines"), [([], 2), (["--sequential"], 1)])
def test_engines_are_loaded_one_at_a_time_if_requested(
    fleet: Path, prompts: Path, more: list[str], engines: int
) -> None:
    found = tune(fleet, prompts, "--method", "ngram", "--draft-lengths", "2", "-o", "json", *more)
    assert json.loads(found.stdout)["recommended"]["num_speculative_tokens"] == 2
    assert KnownEngine.most_at_once == engines
    assert KnownEngine.loaded == []


@pytest.mark.parametrize(
    ("more", "exit_code", "words"),
    [
        (["--pool", "x"], ExitCode.USAGE, "no pool is called 'x'\nRemedy: pools here: chat"),
        (["--concurrency", "3"], ExitCode.USAGE, "has 2 prompts, fewer than --concurrency 3"),
        (["--prompts", "/none.txt"], ExitCode.FAILED, "/none.txt cannot be read"),
        (["--draft-lengths", "0"], ExitCode.FAILED, "--draft-lengths '0' is not a list"),
        (["--method", "magic"], ExitCode.FAILED, "--method magic is not one of ngram"),
        (["--draft-layers", "1", "--method", "draft_model"], ExitCode.FAILED, "num_hidden_layers"),
    ],
)
def test_wrong_arguments_are_reported_before_an_engine_is_loaded(
    fleet: Path, prompts: Path, more: list[str], exit_code: ExitCode, words: str
) -> None:
    found = tune(fleet, prompts, *more)
    assert found.exit_code == exit_code
    assert words in found.stderr
    assert KnownEngine.most_at_once == 0
