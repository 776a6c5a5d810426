from pathlib import Path

from common.failure import gist

VLLM_SAYS = "RuntimeError: Engine core initialization failed. See root cause above."


def test_the_summary_of_a_traceback_is_its_last_error(tmp_path: Path) -> None:
    message = (
        "The deployment failed to start 1 times in a row. Error:\n"
        "Traceback (most recent call last):\n"
        "KeyError: 'x'\n"
        "\x1b[36m(pid=1)\x1b[0m ValueError: max_model_len (9) is greater than 8\n"
    )
    assert gist(message, tmp_path) == "ValueError: max_model_len (9) is greater than 8"


def test_a_pydantic_error_includes_the_lines_after_it(tmp_path: Path) -> None:
    message = "ValidationError: 1 validation error for ModelConfig\n  Value error, no config\n"
    told = "ValidationError: 1 validation error for ModelConfig Value error, no config"
    assert gist(message, tmp_path) == told


def test_a_reason_that_is_elsewhere_is_looked_for_in_the_engines_logs(tmp_path: Path) -> None:
    (tmp_path / "worker-1.err").write_text(
        "(EngineCore pid=7) ERROR 01-01 [core.py:1] OSError: no file named config.json\n"
        f"{VLLM_SAYS}\n"
    )
    assert gist(VLLM_SAYS, tmp_path) == "OSError: no file named config.json"


def test_the_summary_of_output_without_an_error_is_its_last_line(tmp_path: Path) -> None:
    assert gist("first\nlast words\n\n", tmp_path) == "last words"
    assert gist("", tmp_path) == "no reason was given"
