"""A replica's HTTP side: its load, turns and reports."""
