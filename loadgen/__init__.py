"""Load for any OpenAI API, open loop: who asks what and when, the client, what it measured."""
