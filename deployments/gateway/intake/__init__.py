"""What comes in: keys, bodies, what a request asks for, and the errors that it may get."""
