"""Decisions that hold the SLO: who is admitted, what overflows, how many replicas run. Pure."""
