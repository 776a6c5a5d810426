"""Options, judging rules, goals and results of benchmarks."""
