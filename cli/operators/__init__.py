"""Subcommands for API keys, SLOs, Grafana and backtests."""
