"""What a model's weights cost, lose and gain: quantize, evaluate, speculate, plan. Offline."""
