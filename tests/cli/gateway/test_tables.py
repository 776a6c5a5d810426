"""The tables of `antefix adapter list` and `antefix canary status`."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from cli.common.gateway_client import GatewayClient
from cli.main import app

THERE = ("--base-url", "http://127.0.0.1:1/v1", "--api-key", "key")
ADAPTER = {
    "model": "base",
    "rank": 16,
    "bytes": 2_500_000,
    "digest": "c0ffee",
    "source": "/adapters/sql",
    "replicas": ["r1", "r2"],
}
STATE = {"step": 1, "status": "running", "why": ""}


def lines(*command: str) -> list[list[str]]:
    """The cells of the lines, which two or more spaces separate."""
    done = CliRunner().invoke(app, [*command, *THERE])
    assert done.exit_code == 0, done.output
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in done.stdout.splitlines()
    ]


def test_an_adapter_is_a_row_and_wide_adds_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GatewayClient, "adapters", lambda _: {"sql": ADAPTER})
    assert lines("adapter", "list") == [
        ["NAME", "MODEL", "RANK", "SIZE", "REPLICAS"],
        ["sql", "base", "16", "2.5 MB", "2"],
    ]
    assert lines("adapter", "list", "-o", "wide") == [
        ["NAME", "MODEL", "RANK", "SIZE", "REPLICAS", "DIGEST", "SOURCE", "IN MEMORY OF"],
        ["sql", "base", "16", "2.5 MB", "2", "c0ffee", "/adapters/sql", "r1,r2"],
    ]


@pytest.mark.parametrize(
    ("state", "row"),
    [
        (None, ["chat", "next", "not begun"]),
        (STATE, ["chat", "next", "running", "2 of 3", "25%"]),
        ({**STATE, "status": "aborted", "why": "slow"}, ["chat", "next", "aborted", "25%", "slow"]),
    ],
)
def test_a_canary_is_a_row(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, Any] | None, row: list[str]
) -> None:
    canary = {"pool": "next", "state": state, "steps": [1.0, 25.0, 100.0], "share": 0.25}
    monkeypatch.setattr(GatewayClient, "canaries", lambda _: {"chat": canary})
    headings, shown = lines("canary", "status")
    assert headings == ["MODEL", "CANARY", "STATUS", "STEP", "SHARE", "REASON"]
    assert shown == row


def test_empty_adapter_and_canary_lists_print_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GatewayClient, "adapters", lambda _: {})
    monkeypatch.setattr(GatewayClient, "canaries", lambda _: {})
    assert lines("adapter", "list") == lines("canary", "status") == []
