"""`make bench-client`: what `antefix bench` measures, compared with `vllm bench serve`."""
