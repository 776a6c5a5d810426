"""What quantization loses, and what speculation gains."""
