"""`antefix bench` from the command line, against an API that is played."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.common.exit_codes import ExitCode
from cli.main import app
from tests.cli.fake_gateway import FakeGateway, running


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    with running() as gateway:
        monkeypatch.setenv("OPENAI_BASE_URL", gateway.base_url)
        yield gateway


def invoke(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["bench", *arguments])
    return done.exit_code, done.stdout, done.stderr


QUICK = ("short", "--duration", "1", "--rate", "20")


def asked(gateway: FakeGateway) -> list[dict[str, Any]]:
    """Without the trial."""
    return gateway.asked[1:]


def test_json_output_is_one_object_with_the_offered_load_and_the_results(
    gateway: FakeGateway,
) -> None:
    code, out, notes = invoke(*QUICK, "-o", "json", "--ttft-slo", "100", "--run-id", "mine")
    assert code == 0, notes
    found = json.loads(out)
    assert (found["workload"], found["arrivals"], found["rate_per_s"]) == ("short", "poisson", 20.0)
    assert (found["model"], found["run_id"]) == ("small", "mine")
    assert (found["requests"], found["completed"], found["errors"]) == (20, 20, {})
    # "Par", "is", "."
    assert (found["output_tokens"], found["output_tokens_counted_by"]) == (60, "events")
    assert found["goodput"]["share"] == 1.0
    assert found["client"]["cpu_s"] > 0.0
    assert len(asked(gateway)) == 20
    assert all(body["messages"][0]["content"].startswith("mine ") for body in asked(gateway))


def test_its_table_has_a_row_for_each_latency(gateway: FakeGateway) -> None:
    code, out, notes = invoke(*QUICK)
    assert code == 0, notes
    for name in ("TTFT", "TPOT", "gap", "end to end", "requests", "client"):
        assert f"\n{name}" in out
    assert "20 answered, 0 failed" in out
    assert "the server does not report it" in out
    assert "20 requests to small" in notes


def test_the_html_page_is_self_contained_and_contains_the_result(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    gateway.most_answers = 15
    page = tmp_path / "result.html"
    code, out, notes = invoke(*QUICK, "--html", str(page), "-o", "json", "--ttft-slo", "9")
    assert code == 0, notes
    text = page.read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", text)
    assert text.count("<svg") == 1
    (data,) = re.findall(r'<script type="application/json" id="result">(.*)</script>', text)
    assert json.loads(data) == json.loads(out)
    assert "14 answered, 6 failed" in text
    assert "goodput" in text


def test_a_ramp_sends_requests_at_a_rising_rate(gateway: FakeGateway, tmp_path: Path) -> None:
    record = tmp_path / "requests.jsonl"
    files = ("--record", str(record), "--html", str(tmp_path / "h"))
    options = ("--ramp-to", "40", *files, "-o", "json")
    code, out, notes = invoke("short", "--duration", "2", "--rate", "1", *options)
    assert code == 0, notes
    assert json.loads(out)["requests"] == 41
    due = [json.loads(line)["due_s"] for line in record.read_text().splitlines()]
    assert sum(at < 1.0 for at in due) < sum(at >= 1.0 for at in due)


TRACE = """\
{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}
{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 3]}
{"timestamp": 1000, "input_length": 9, "output_length": 2, "hash_ids": [4]}
"""


def test_a_trace_is_played_as_it_was_recorded(gateway: FakeGateway, tmp_path: Path) -> None:
    trace = tmp_path / "mine.jsonl"
    trace.write_text(TRACE)
    code, out, notes = invoke("--trace", str(trace), "--run-id", "mine", "-o", "json")
    assert code == 0, notes
    found = json.loads(out)
    assert (found["workload"], found["arrivals"]) == ("mine.jsonl", "trace")
    one, other, last = sorted(asked(gateway), key=lambda body: -len(str(body)))
    assert [body["max_tokens"] for body in (one, other, last)] == [5, 1, 2]
    prompts = [body["messages"][0]["content"].split() for body in (one, other, last)]
    assert [len(prompt) - 1 for prompt in prompts] == [700, 600, 9]
    assert prompts[0][:513] == prompts[1][:513]
    assert prompts[0][513:600] != prompts[1][513:600]


def test_an_invalid_line_of_a_trace_is_reported(gateway: FakeGateway, tmp_path: Path) -> None:
    trace = tmp_path / "mine.jsonl"
    trace.write_text(TRACE + '{"timestamp": 0}\n')
    code, _, notes = invoke("--trace", str(trace))
    assert code == ExitCode.FAILED
    assert f"{trace}:4 is not a request" in notes


def test_every_run_has_different_prompts(gateway: FakeGateway) -> None:
    invoke(*QUICK)
    invoke(*QUICK)
    first, second = asked(gateway)[:20], gateway.asked[22:]
    one, other = ({b["messages"][0]["content"] for b in bodies} for bodies in (first, second))
    assert not one & other
    without_run_id = [{text.partition(" ")[2] for text in texts} for texts in (one, other)]
    assert without_run_id[0] == without_run_id[1]


def test_every_request_is_recorded(gateway: FakeGateway, tmp_path: Path) -> None:
    record = tmp_path / "requests.jsonl"
    code, _, notes = invoke(*QUICK, "--record", str(record))
    assert code == 0, notes
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(lines) == 20
    assert all(len(line["token_times_s"]) == 3 for line in lines)


def test_extra_fields_are_sent_with_every_request(gateway: FakeGateway) -> None:
    invoke(*QUICK, "--body", '{"top_p": 0.5, "ignore_eos": null}')
    assert all(b["top_p"] == 0.5 and "ignore_eos" not in b for b in gateway.asked)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["shorts"], "unknown workload 'shorts'\nRemedy: use one of multi_turn, "),
        (["--base-url", "nowhere"], "--base-url 'nowhere' is not an address of an OpenAI API"),
        (
            ["--model", "large"],
            "has no model 'large'; it has small\nRemedy: pass one of these as --model",
        ),
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--trace", "mine.txt"], "mine.txt is not a trace in a known format"),
        (["short", "--trace", "x.csv"], "WORKLOAD short and --trace cannot be used together"),
        (["--rate", "3", "--trace", "x.csv"], "--rate 3.0 and --trace cannot be used together"),
        (["--body", "{"], "--body '{' is not JSON"),
        (["--body", "[]"], "--body '[]' is not a JSON object"),
        (["--record", "/no/such/file"], "/no/such/file cannot be written: No such file"),
    ],
)
def test_an_error_is_reported_before_any_load(
    gateway: FakeGateway, arguments: list[str], says: str
) -> None:
    code, out, notes = invoke(*arguments)
    assert (code, out) == (ExitCode.FAILED, "")
    assert says in notes
    assert [line.partition(": ")[0] for line in notes.splitlines()] == ["Error", "Remedy"]
    assert gateway.asked == []


def test_an_address_without_an_openai_api_is_reported(gateway: FakeGateway) -> None:
    code, _, notes = invoke(*QUICK, "--base-url", gateway.base_url.removesuffix("/v1"))
    assert code == ExitCode.FAILED
    assert (
        "/models returned HTTP 404: this is not an OpenAI API\nRemedy: pass the --base-url of one"
        in notes
    )


def test_an_api_that_refuses_the_key_is_reported(gateway: FakeGateway) -> None:
    gateway.key_refused = True
    code, _, notes = invoke(*QUICK)
    assert code == ExitCode.FAILED
    assert "refuses the API key with 401\nRemedy: set OPENAI_API_KEY, or pass --api-key" in notes


def test_an_api_that_refuses_a_field_is_reported_before_any_load(gateway: FakeGateway) -> None:
    gateway.refuses = "ignore_eos"
    code, _, notes = invoke(*QUICK)
    assert code == ExitCode.FAILED
    assert "did not answer a first request (http_400): unknown field ignore_eos" in notes
    assert """as --body '{"ignore_eos": null}' does""" in notes
    assert len(gateway.asked) == 1
    assert invoke(*QUICK, "--body", '{"ignore_eos": null}')[0] == 0


def test_without_an_answered_request_bench_fails_without_a_result(gateway: FakeGateway) -> None:
    gateway.most_answers = 1
    code, out, notes = invoke(*QUICK)
    assert (code, out) == (ExitCode.FAILED, "")
    assert (
        "none of 20 requests was answered; the first failed with http_503: full\nRemedy: " in notes
    )
