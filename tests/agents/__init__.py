"""Real clients of agents, and bodies recorded from them, on one real engine behind a gateway."""
