"""An answer on its way to the client, whichever engines make it."""
