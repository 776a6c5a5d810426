"""Decisions that meet the SLO: admission, overflow, and the number of replicas. Pure."""
