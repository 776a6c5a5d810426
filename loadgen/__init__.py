"""Open-loop load for any OpenAI API: traffic, client and measurements."""
