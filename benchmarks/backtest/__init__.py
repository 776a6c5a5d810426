"""Traces under our autoscaler and under Ray Serve's own, on simulated engines."""
