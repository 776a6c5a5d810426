"""Triton's interpreter, without what it repeats: its language is patched once instead of at each
launch, and sizes are made once. As on a GPU, nothing checks for overflow."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import Any
from unittest.mock import patch


def speed_up() -> None:
    from triton.runtime import interpreter

    _patch_the_language_once(interpreter)
    _keep_sizes(interpreter.tl)
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def _patch_the_language_once(interpreter: Any) -> None:
    """For each module of kernels. Nothing is compiled in this process, so it stays patched."""
    patch_module, patched = interpreter._patch_lang, set[int]()

    def patch_lang(kernel: Any) -> _Patched:
        if id(kernel.__globals__) not in patched:
            patch_module(kernel)
            patched.add(id(kernel.__globals__))
        return _Patched()

    patch.object(interpreter, "_patch_lang", patch_lang).start()


class _Patched:
    def restore(self) -> None:
        """Nothing, after a launch."""


def _keep_sizes(language: Any) -> None:
    """A tensor's sizes as constants, of each shape."""
    constant = language.constexpr

    @cache
    def constants(shape: tuple[int, ...]) -> tuple[Any, tuple[Any, ...]]:
        return constant(prod(shape)), tuple(map(constant, shape))

    def init(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = constants(tuple(type.shape) if type.is_block() else ())

    language.tensor.__init__ = init
