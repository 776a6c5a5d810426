"""The LoRA adapters of one replica."""
