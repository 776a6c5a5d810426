"""What Triton asks of a backend. An interpreted kernel is never compiled."""

from triton.backends.compiler import BaseBackend


class InterpretedCompiler(BaseBackend):  # type: ignore[misc]  # triton is not installed here
    pass


InterpretedCompiler.__abstractmethods__ = frozenset()
# Triton takes the one subclass in this module
del BaseBackend
