"""Facts of models, weights and GPUs."""
