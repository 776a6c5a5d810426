"""LoRA adapters, many more than engines have room for."""
