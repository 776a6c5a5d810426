"""The simulator beside the fleet that it stands for."""
