"""Fleets, engines, gateways and Redis of benchmarks."""
