"""The simulator compared with the fleet that it stands for."""
