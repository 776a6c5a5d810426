"""An answer on its way to the client, from one or several engines."""
