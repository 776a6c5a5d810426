"""The pools of a fleet: who of them serves a request, and when."""
