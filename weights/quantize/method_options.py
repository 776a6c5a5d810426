"""Options of quantization methods: `antefix quantize --set KEY=VALUE`.

The defaults are llm-compressor's, except SmoothQuant's, which suits models such as Llama. Invalid
options raise Problem before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from common.errors import Problem
from weights.model.schemes import Scheme

OptionValue = float | int | bool


@dataclass(frozen=True)
class MethodOption:
    """An option. `methods`: those of a Scheme that have it. `least` and `most` do not apply to a
    switch."""

    methods: tuple[str, ...]
    default: OptionValue
    meaning: str
    least: float = 0
    most: float = 1

    def read(self, name: str, text: str) -> OptionValue:
        """Return the value. Raises Problem if `text` is not one."""
        if isinstance(self.default, bool):
            if text not in ("true", "false"):
                raise Problem(f"{name}={text} is neither true nor false", f"write {name}=true")
            return text == "true"
        try:
            value = type(self.default)(text)
        except ValueError:
            value = self.least - 1
        if not self.least <= value <= self.most:
            kind = "a whole number" if isinstance(self.default, int) else "a number"
            raise Problem(
                f"{name}={text} is not {kind} from {self.least:g} to {self.most:g}",
                f"the default is {name}={self.default:g}: {self.meaning}",
            )
        return value


OPTIONS = {
    "smoothing": MethodOption(
        ("smoothquant",),
        0.8,
        "the share of the rounding difficulty that moves from activations to weights",
    ),
    "grid": MethodOption(("awq",), 20, "the number of scales tried for each layer", 2, 1000),
    "damp": MethodOption(
        ("gptq",),
        0.01,
        "the amount added to the Hessian's diagonal, as a share of its mean",
        0.0001,
    ),
    "act_order": MethodOption(
        ("gptq",), True, "whether the inputs with the largest activations are rounded first"
    ),
}
# For schemes with groups, with any method. Kernels for W8A8 read only symmetric weights.
SYMMETRIC = "symmetric"
_SYMMETRIC = MethodOption((), True, "whether weights are rounded without zero points")


def defaults_of(scheme: Scheme) -> dict[str, OptionValue]:
    """Return the defaults of all options of the scheme."""
    found = {name: of.default for name, of in OPTIONS.items() if scheme.method in of.methods}
    return {**found, SYMMETRIC: scheme.symmetric} if scheme.grouped else found


def options_of(scheme: Scheme, given: Iterable[str] = ()) -> dict[str, OptionValue]:
    """Return all options of the scheme, with the given KEY=VALUE ones. Raises Problem."""
    defaults = defaults_of(scheme)
    chosen: dict[str, OptionValue] = {}
    for each in given:
        key, equals, text = each.partition("=")
        name = key.replace("-", "_")
        if not equals:
            raise Problem(f"--set {each!r} is not KEY=VALUE", "write damp=0.01")
        if name not in defaults:
            remedy = f"it has {', '.join(defaults)}" if defaults else "omit --set"
            raise Problem(f"{scheme.name} has no option {key!r}", remedy)
        if name in chosen:
            raise Problem(f"{name} is set twice", "set it once")
        chosen[name] = OPTIONS.get(name, _SYMMETRIC).read(name, text.strip())
    return {**defaults, **chosen}
