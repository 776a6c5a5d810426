"""`make bench-client`: what `antefix bench` measures, beside what `vllm bench serve` does."""
