"""Two kinds of accelerators under one model name: time to first token and cost."""
