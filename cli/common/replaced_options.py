"""Former options and what replaced them, for the error of a command line that still has one."""

from __future__ import annotations

# Name of the command, or empty for every command; the former option; its replacement.
_REPLACED = {
    ("", "--json"): "-o json",
    ("", "--apart"): "--sequential",
    ("backtest", "--limit-s"): "--duration, such as 30m",
    ("backtest", "--startup-s"): "--startup-time, such as 90s",
    ("backtest", "--warm"): "--warm-replicas",
    ("bench", "--lengths"): "--length-scale",
    ("bench", "--seconds"): "--duration, such as 5m",
    ("evaluate", "--report"): "--output-dir",
    ("grafana pull", "--out"): "--output-dir",
    ("init", "--model"): "an argument: antefix init MODEL",
    ("init", "--out"): "--output-file",
    ("k8s accept", "--keep-engines"): "--non-disruptive",
    ("k8s accept", "--recover"): "--recovery-timeout, such as 15m",
    ("k8s accept", "--report"): "--output-dir",
    ("k8s accept", "--release"): "an argument: antefix k8s accept RELEASE",
    ("k8s preflight", "--release"): "an argument: antefix k8s preflight RELEASE",
    ("k8s status", "--release"): "an argument: antefix k8s status RELEASE",
    ("key create", "--expires-in-days"): "--expires-in, such as 90d",
    ("key rotate", "--grace-days"): "--grace-period, such as 7d",
    ("logs", "-n"): "--tail",
    ("plan", "--context"): "--context-tokens",
    ("plan", "--fleet"): "-o fleet",
    ("plan", "--long-prompt"): "--long-prompt-tokens",
    ("plan", "--model"): "an argument: antefix plan MODEL",
    ("plan", "--output"): "-o for the format, --answer-tokens for the length of answers",
    ("plan", "--prompt"): "--prompt-tokens",
    ("profile", "--seconds"): "--duration, such as 10s",
    ("quantize", "--out"): "--output-dir",
    ("slo render", "--out"): "--output-dir",
    ("tune-speculation", "--k"): "--draft-lengths",
}


def replacement(command: str, option: str) -> str | None:
    """Return what replaced `option` of `command`, such as "k8s status"; None if nothing did."""
    return _REPLACED.get((command, option)) or _REPLACED.get(("", option))
