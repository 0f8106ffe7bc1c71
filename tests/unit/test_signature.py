"""Constructor signatures read from source."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from bagua_bench.sources.signature import Argument, arguments


@pytest.mark.parametrize("target", ["tasks.vgg16.VGG16", "algorithms.bytegrad.ByteGrad", "bagua_bench.peers.ddp.DDP"])
def test_names_are_the_constructor_s(target: str) -> None:
    module, _, name = target.rpartition(".")
    real = inspect.signature(getattr(import_module(module), name)).parameters
    assert list(arguments(target)) == list(real)


def test_what_an_argument_accepts() -> None:
    number, flag, choice = Argument(("float",), ()), Argument(("bool",), ()), Argument((), ("a", "b"))
    assert number.accepts(1) and number.accepts(0.5) and not number.accepts("1") and not number.accepts(True)
    assert flag.accepts(False) and not flag.accepts(0)
    assert choice.accepts("a") and not choice.accepts("c")
    optional = Argument(("float", "NoneType"), ())
    assert optional.accepts(None) and not number.accepts(None)
    assert (str(optional), str(choice)) == ("a number or null", "one of a, b")


def test_a_pair_has_two_numbers() -> None:
    betas = arguments("algorithms.qadam.QAdam")["betas"]
    assert betas.problem([0.9, 0.999]) == betas.problem(None) == ""
    for wrong in ([0.9], [0.9, 0.99, 0.999], [0.9, "0.999"], 0.9):
        assert betas.problem(wrong) == "expected [a number, a number] or null"


@pytest.mark.parametrize("target", ["no.such.module.Thing", "algorithms.bytegrad.Thing", ""])
def test_a_wrong_target_is_an_error(target: str) -> None:
    with pytest.raises(ValueError, match=f"_target_={target}"):
        arguments(target)
