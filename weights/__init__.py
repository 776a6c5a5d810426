"""Cost and quality of a model's weights: quantize, evaluate, speculate, plan. Offline."""
