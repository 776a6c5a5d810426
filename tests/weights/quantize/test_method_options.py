"""What may be set of a way to quantize, and what is said about what may not."""

import pytest

from common.errors import Problem
from weights.model.schemes import SCHEMES
from weights.quantize.method_options import OPTIONS, defaults_of, options_of


def test_options_that_are_not_given_have_their_defaults() -> None:
    assert {name: options_of(scheme) for name, scheme in SCHEMES.items()} == {
        "awq": {"grid": 20, "symmetric": False},
        "gptq": {"damp": 0.01, "act_order": True, "symmetric": True},
        "rtn": {"symmetric": True},
        "w8a16": {},
        "w8a8-smoothquant": {"smoothing": 0.8},
        "w8a8": {},
        "fp8": {},
    }


def test_every_option_belongs_to_a_scheme() -> None:
    assert OPTIONS.keys() <= {name for scheme in SCHEMES.values() for name in defaults_of(scheme)}


@pytest.mark.parametrize(
    ("scheme", "given", "found"),
    [
        ("w8a8-smoothquant", ["smoothing=0.85"], {"smoothing": 0.85}),
        ("w8a8-smoothquant", ["smoothing=1"], {"smoothing": 1.0}),
        ("gptq", ["act-order=false", "damp=0.1"], {"act_order": False, "damp": 0.1}),
        ("awq", ["grid=40", "symmetric=true"], {"grid": 40, "symmetric": True}),
    ],
)
def test_a_given_option_replaces_the_default(
    scheme: str, given: list[str], found: dict[str, object]
) -> None:
    assert options_of(SCHEMES[scheme], given) == {**defaults_of(SCHEMES[scheme]), **found}


@pytest.mark.parametrize(
    ("scheme", "given", "message", "remedy"),
    [
        ("gptq", ["damp"], "--set 'damp' is not KEY=VALUE", "write damp=0.01"),
        ("awq", ["damp=1"], "awq has no option 'damp'", "it has grid, symmetric"),
        ("fp8", ["symmetric=true"], "fp8 has no option 'symmetric'", "omit --set"),
        ("gptq", ["damp=1", "damp=1"], "damp is set twice", "set it once"),
        (
            *("gptq", ["act_order=yes"]),
            *("act_order=yes is neither true nor false", "write act_order=true"),
        ),
        (
            *("w8a8-smoothquant", ["smoothing=1.5"]),
            "smoothing=1.5 is not a number from 0 to 1",
            "the default is smoothing=0.8: the share of the rounding difficulty that moves from "
            "activations to weights",
        ),
        (
            *("awq", ["grid=2.5"]),
            "grid=2.5 is not a whole number from 2 to 1000",
            "the default is grid=20: the number of scales tried for each layer",
        ),
        (
            *("gptq", ["damp=nan"]),
            "damp=nan is not a number from 0.0001 to 1",
            "the default is damp=0.01: the amount added to the Hessian's diagonal, as a share of "
            "its mean",
        ),
    ],
)
def test_an_invalid_option_is_reported_with_the_valid_ones(
    scheme: str, given: list[str], message: str, remedy: str
) -> None:
    with pytest.raises(Problem) as caught:
        options_of(SCHEMES[scheme], given)
    assert (caught.value.message, caught.value.remedy) == (message, remedy)
