"""The pools of a fleet: a request's prompt, its replica, and its turn."""
