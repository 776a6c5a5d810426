"""Antefix in Kubernetes: the chart's values, what a cluster must have, GPU nodes kept warm."""
