"""What Triton and vLLM ask of a backend's driver: only whether it is active."""

from triton.backends.driver import DriverBase


class InterpretedDriver(DriverBase):  # type: ignore[misc]  # triton is not installed here
    """Inactive, because Triton would find two drivers on a machine with a GPU."""

    @classmethod
    def is_active(cls) -> bool:
        return False


for _name in DriverBase.__abstractmethods__ - {"is_active"}:
    setattr(InterpretedDriver, _name, lambda self, *arguments: None)
InterpretedDriver.__abstractmethods__ = frozenset()
# Triton takes the one subclass in this module
del DriverBase
