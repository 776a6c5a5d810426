"""Triton's interpreter does less again: it patches its language at each launch, and at each
operation makes tables and checks for overflow, which a GPU does not. Kernels compute the same."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import Any


def speed_up() -> None:
    from triton.runtime import interpreter

    _patch_the_language_once(interpreter)
    _keep_types(interpreter)
    _keep_sizes(interpreter.tl)
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def _patch_the_language_once(interpreter: Any) -> None:
    """For each module of kernels. Nothing is compiled in this process, so it stays patched."""
    patch, patched, nothing = interpreter._patch_lang, set[int](), interpreter._LangPatchScope()

    def patch_lang(kernel: Any) -> Any:
        if id(kernel.__globals__) not in patched:
            patch(kernel)
            patched.add(id(kernel.__globals__))
        return nothing

    interpreter._patch_lang = patch_lang


def _keep_types(interpreter: Any) -> None:
    """NumPy's type of each of Triton's, by name."""
    find, known = interpreter._get_np_dtype, dict[str, Any]()

    def get_np_dtype(of: Any) -> Any:
        scalar = of.scalar
        if scalar.name not in known:
            known[scalar.name] = find(scalar)
        return known[scalar.name]

    interpreter._get_np_dtype = get_np_dtype


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
