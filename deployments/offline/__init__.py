"""An engine without a server, to evaluate quantized weights and to tune speculation."""
