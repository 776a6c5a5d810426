"""What a fleet does when its parts are killed, frozen, slowed or removed."""
