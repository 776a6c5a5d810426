"""What prompts of up to 100,000 tokens cost a gateway."""
