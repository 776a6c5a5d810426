"""Traces under Antefix and other autoscalers, on simulated engines."""
