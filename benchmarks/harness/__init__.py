"""The harness that benchmarks share: fleets, gateways and engines to measure, load, results."""
