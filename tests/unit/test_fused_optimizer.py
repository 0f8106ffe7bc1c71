"""`fuse`: bit for bit the optimizer that it takes the steps of, whatever happens between its steps."""

from __future__ import annotations

import copy
import io
import pickle
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

from bagua_bench import fuse
from bagua_bench.fused import plan, rounding
from bagua_bench.fused.optimizer import FusedOptimizer
from tests.catalogue import HOME

OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Sequence[Any]]]] = {
    "SGD": (torch.optim.SGD, {"momentum": (0.0, 0.9), "nesterov": (False,), "maximize": (False, True)}),
    "SGD nesterov": (torch.optim.SGD, {"momentum": (0.8,), "nesterov": (True,)}),
    "Adam": (torch.optim.Adam, {"amsgrad": (False, True), "maximize": (False, True)}),
    "AdamW": (torch.optim.AdamW, {"amsgrad": (False, True), "betas": ((0.4, 0.99),)}),
    "NAdam": (torch.optim.NAdam, {"decoupled_weight_decay": (False, True)}),
    "RAdam": (torch.optim.RAdam, {"decoupled_weight_decay": (False, True), "betas": ((0.9, 0.9),)}),
    "RMSprop": (torch.optim.RMSprop, {"momentum": (0.0, 0.9), "centered": (False, True)}),
    "Rprop": (torch.optim.Rprop, {"maximize": (False, True)}),
    "ASGD": (torch.optim.ASGD, {"t0": (1e6, 2.0), "lambd": (1e-2,)}),
    "Adamax": (torch.optim.Adamax, {"maximize": (False, True)}),
    "Adadelta": (torch.optim.Adadelta, {"rho": (0.9,)}),
    "Adagrad": (torch.optim.Adagrad, {"lr_decay": (0.0, 0.1), "initial_accumulator_value": (0.0, 0.5)}),
}
WITHOUT_DECAY = ("Rprop",)
SHAPES = [(7,), (), (3, 5), (1,), (2, 3, 4, 2), (200,), (11, 13), (0, 3), (64,), (5,)]
"""With 50 elements to a piece (`small`) some of these are joined and some are cut."""


@dataclass
class Side:
    """Parameters, and an optimizer of them."""

    params: list[Parameter]
    optimizer: Any
    schedule: Any


def small(elements: int = 50) -> Any:
    """Pieces and joined parameters of at most so many elements."""
    return patch.multiple(plan, _PER_THREAD=elements)


def parameters(dtype: torch.dtype) -> list[Parameter]:
    generator = torch.Generator().manual_seed(1)
    made = [Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
    made[4].data = made[4].data.to(memory_format=torch.channels_last)
    made[6].data = made[6].data.t().contiguous().t()
    return made


def side(name: str, options: dict[str, Any], dtype: torch.dtype, by_two: bool, fused: bool) -> Side:
    kind, _ = OPTIMIZERS[name]
    params = parameters(dtype)
    decay = {} if name in WITHOUT_DECAY else {"weight_decay": 0.1}
    groups = [{"params": params[::2], "lr": 0.02}, {"params": params[1::2], **decay}] if by_two else params
    optimizer: Any = kind(groups, lr=0.01, **options)  # type: ignore[call-arg]
    schedule = StepLR(optimizer, 2, 0.5)
    return Side(params, fuse(optimizer) if fused else optimizer, schedule)


def give_gradients(params: Sequence[Tensor], step: int, missing: set[int]) -> None:
    """Every third time some are in another memory format than their parameter."""
    generator = torch.Generator().manual_seed(100 + step)
    for number, p in enumerate(params):
        gradient = torch.randn(p.shape, generator=generator).to(p.dtype)
        if step % 3 == 2 and number % 2:
            gradient = gradient.mT.contiguous().mT if p.dim() > 1 else gradient
        p.grad = None if number in missing else gradient


def bits(x: Any) -> Any:
    return (
        (x.dtype, x.shape, x.clone().contiguous().view(-1).view(torch.uint8).tolist()) if isinstance(x, Tensor) else x
    )


def state_of(optimizer: Any) -> Any:
    """A `state_dict` in which tensors are compared by their bits."""
    found = optimizer.state_dict()
    states = {number: {key: bits(x) for key, x in own.items()} for number, own in found["state"].items()}
    return states, found["param_groups"]


ACTIONS = ("fused", "fused", "plain", "saved", "scalars")


@st.composite
def cases(draw: Any) -> Any:
    name = draw(st.sampled_from(sorted(OPTIMIZERS)))
    options = {key: draw(st.sampled_from(values)) for key, values in OPTIMIZERS[name][1].items()}
    options["foreach"] = draw(st.sampled_from([False, None, True]))
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.float64, torch.bfloat16]))
    unused = st.sets(st.integers(0, len(SHAPES) - 1), max_size=3)
    steps = draw(st.lists(st.tuples(st.sampled_from(ACTIONS), unused), min_size=2, max_size=7))
    return name, options, dtype, draw(st.booleans()), steps


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_steps_are_those_of_the_optimizer_itself_bit_for_bit(case: Any) -> None:
    """Also in turns with its own, with missing gradients, schedules, from checkpoints and with scalars set by hand."""
    name, options, dtype, by_two, steps = case
    with small():
        ours, theirs = (side(name, options, dtype, by_two, fused) for fused in (True, False))
        for step, (action, missing) in enumerate(steps):
            for each in (ours, theirs):
                give_gradients(each.params, step, missing)
            for each in (ours, theirs) if action == "saved" else ():  # torch changes the type of some scalars then
                each.optimizer.load_state_dict(copy.deepcopy(each.optimizer.state_dict()))
            ours.optimizer.unfused.step() if action == "plain" else ours.optimizer.step()
            theirs.optimizer.step()
            if action == "scalars":
                for each in (ours, theirs):
                    set_step(each)
            for each in (ours, theirs):
                each.schedule.step()
            assert [bits(p) for p in ours.params] == [bits(p) for p in theirs.params]
            assert state_of(ours.optimizer) == state_of(theirs.optimizer)


def set_step(each: Side) -> None:
    """Set a scalar of one parameter by hand."""
    for key in ("step", "mu_product"):
        own = each.optimizer.state.get(each.params[3], {})
        if key in own:
            own[key].mul_(0.5).add_(1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_hundred_steps_in_turns(name: str) -> None:
    options = {key: values[-1] for key, values in OPTIMIZERS[name][1].items()}
    with small():
        ours, theirs = (side(name, options, torch.float32, True, fused) for fused in (True, False))
        for step in range(101):
            for each in (ours, theirs):
                give_gradients(each.params, step, set())
                each.schedule.last_epoch = 0  # at a steady rate
            ours.optimizer.unfused.step() if step % 2 else ours.optimizer.step()
            theirs.optimizer.step()
        assert [bits(p) for p in ours.params] == [bits(p) for p in theirs.params]
        assert state_of(ours.optimizer) == state_of(theirs.optimizer)


def test_scalars_of_a_checkpoint_that_are_set_by_hand() -> None:
    """What a checkpoint brings shares its memory as before, but every tensor counts its own changes."""
    for number in (0, 3, 9):  # whichever of them lies first in memory
        with small():
            ours, theirs = (side("RAdam", {}, torch.float32, False, fused) for fused in (True, False))
            for step in range(6):
                for each in (ours, theirs):
                    give_gradients(each.params, step, set())
                    if step == 3:
                        each.optimizer.load_state_dict(copy.deepcopy(each.optimizer.state_dict()))
                    each.optimizer.step()
                    each.optimizer.state[each.params[number]]["step"].mul_(1.5 if step == 4 else 1)
            assert [bits(p) for p in ours.params] == [bits(p) for p in theirs.params]
            assert state_of(ours.optimizer) == state_of(theirs.optimizer)


# -- what is joined and what is cut ------------------------------------------------------------------------------


def adam(params: Any, **options: Any) -> FusedOptimizer:
    return fuse(torch.optim.Adam(params, lr=0.01, foreach=False, **options))


def test_a_thousand_small_parameters_are_one_tensor_and_their_state_lies_together() -> None:
    params = [Parameter(torch.ones(10)) for _ in range(1000)]
    optimizer = adam(params)
    for step in range(3):
        give_gradients(params, step, set())
        optimizer.step()
        assert optimizer.tensors == 1
    assert len({optimizer.state[p]["exp_avg"].untyped_storage().data_ptr() for p in params}) == 1
    assert [float(optimizer.state[p]["step"]) for p in params] == [3.0] * 1000


def test_a_large_parameter_is_cut_and_its_state_is_whole() -> None:
    p = Parameter(torch.ones(10, 100))
    optimizer = adam([p])
    with small(300):
        for step in range(2):
            give_gradients([p], step, set())
            optimizer.step()
            assert optimizer.tensors == 4
    assert optimizer.state[p]["exp_avg"].shape == (10, 100) and optimizer.state[p]["exp_avg"].is_contiguous()


def test_adjacent_memory_is_not_copied() -> None:
    """Parameters and gradients in flat buckets are updated where they lie."""
    params = [Parameter(torch.ones(n)) for n in (4, 6, 5)]
    weight, gradient = torch.ones(15), torch.ones(15)
    for p, w, g in zip(reversed(params), weight.split([5, 6, 4]), gradient.split([5, 6, 4]), strict=True):
        p.data, p.grad = w, g
    optimizer = adam(params)
    with patch.object(torch, "_foreach_copy_") as copied, patch.object(torch, "cat") as gathered:
        optimizer.step()
        optimizer.step()
    assert optimizer.tensors == 1
    assert not copied.called and not gathered.called
    assert weight.unique().tolist() == pytest.approx([0.98])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_whose_last_elements_are_rounded_otherwise_are_left_as_they_are(dtype: torch.dtype) -> None:
    params = [Parameter(torch.ones(10, dtype=dtype)) for _ in range(5)]
    optimizer = adam(params)
    give_gradients(params, 0, set())
    optimizer.step()
    uniform = rounding.is_uniform(dtype, torch.device("cpu"))
    assert optimizer.tensors == (1 if uniform else 5)


def test_uneven_rounding_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def uneven(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """The last three elements of a tensor come out larger."""
        found = x.mul(y)
        found[-3:] *= 1 + 2**-20
        return found

    probe = rounding.is_uniform.__wrapped__
    assert probe(torch.float32, torch.device("cpu"))
    monkeypatch.setattr(rounding, "_OPERATIONS", (*rounding._OPERATIONS, uneven))
    assert not probe(torch.float32, torch.device("cpu"))


def test_parameters_of_one_memory_are_updated_one_after_the_other() -> None:
    def shared(fused: bool) -> Tensor:
        base = torch.linspace(0, 1, 12)
        params = [Parameter(torch.empty(8)), Parameter(torch.empty(8))]
        params[0].data, params[1].data = base[:8], base[4:]
        plain = torch.optim.SGD(params, lr=0.1, weight_decay=0.5, foreach=False)
        optimizer: Optimizer = fuse(plain) if fused else plain
        give_gradients(params, 0, set())
        optimizer.step()
        return base

    assert torch.equal(shared(True), shared(False))


def test_the_pages_snippet_runs() -> None:
    [code] = re.findall(
        r"<!-- snippet -->\n```python\n(.*?)```", (HOME / "docs" / "fused-optimizer.md").read_text(), re.S
    )
    exec(compile(code, "fused-optimizer.md", "exec"), {})


# -- what surrounds a step -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_the_fused_one", [True, False])
def test_schedules_hooks_and_warnings(on_the_fused_one: bool) -> None:
    p = Parameter(torch.ones(5))
    plain = torch.optim.SGD([p], lr=1.0)
    optimizer = fuse(plain)
    told = []
    plain.register_step_pre_hook(lambda *_: told.append("before"))
    optimizer.register_step_post_hook(lambda *_: told.append("after"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = StepLR(optimizer if on_the_fused_one else plain, 1, 0.5)
        for _ in range(2):
            p.grad = torch.ones(5)
            optimizer.step()
            schedule.step()
    assert told == ["before", "after"] * 2
    assert p.tolist() == [1 - 1.0 - 0.5] * 5
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_a_closure_is_called_once_with_gradients_enabled() -> None:
    p, calls = Parameter(torch.tensor([2.0, 3.0])), []
    optimizer = fuse(torch.optim.SGD([p], lr=0.1))

    def closure() -> float:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        calls.append(loss.item())
        return loss.item()

    assert optimizer.step(closure) == 13.0
    assert calls == [13.0]
    torch.testing.assert_close(p.detach(), torch.tensor([1.6, 2.4]))


def test_a_loss_scaler_steps_it_and_skips_overflows() -> None:
    params = [Parameter(torch.ones(3)) for _ in range(4)]
    optimizer, scaler = adam(params), torch.amp.GradScaler("cpu")
    for loss, moves in ((sum(p.sum() for p in params), True), (sum(p.sum() for p in params) * float("inf"), False)):
        before = [p.detach().clone() for p in params]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert all(torch.equal(p, was) != moves for p, was in zip(params, before, strict=True))


def test_new_groups_and_new_memory_are_noticed() -> None:
    def trained(make: Callable[[Optimizer], Any]) -> list[Any]:
        params = [Parameter(torch.ones(n)) for n in (3, 4, 5)]
        optimizer = make(torch.optim.Adam(params[:2], lr=0.01, foreach=False))
        for step in range(6):
            if step == 2:
                optimizer.add_param_group({"params": [params[2]], "lr": 0.1})
            if step == 4:
                for p in params:
                    p.data = p.data.double()
                optimizer.load_state_dict(optimizer.state_dict())
            give_gradients(params, step, set())
            optimizer.step()
        return [bits(p) for p in params]

    assert trained(fuse) == trained(lambda optimizer: optimizer)


def test_a_fused_checkpoint_goes_into_a_plain_optimizer_and_back() -> None:
    def start(dtype: torch.dtype = torch.float32) -> tuple[list[Parameter], torch.optim.Adam]:
        params = parameters(dtype)
        return params, torch.optim.Adam(params, lr=0.01, amsgrad=True, foreach=False)

    def through_a_file(source: Any, target: Any) -> None:
        file = io.BytesIO()
        torch.save(source.state_dict(), file)
        file.seek(0)
        target.load_state_dict(torch.load(file))

    with small():
        (wanted, plain), (got, first) = start(), start()
        fused, (_, middle), (_, last) = fuse(first), start(), start()
        for number, optimizer in enumerate((fused, middle, fuse(last))):
            for before, after in zip(got, optimizer.param_groups[0]["params"], strict=True):
                after.data.copy_(before.data)
            if number:
                through_a_file((fused, middle)[number - 1], optimizer)
            got = optimizer.param_groups[0]["params"]
            for step in range(3):
                for params in (wanted, got):
                    give_gradients(params, 3 * number + step, set())
                plain.step()
                optimizer.step()
        assert [bits(p) for p in got] == [bits(p) for p in wanted]


def test_torchs_fused_kernel_that_comes_with_a_checkpoint_is_left_alone() -> None:
    params = [Parameter(torch.ones(10)) for _ in range(4)]
    give_gradients(params, 0, set())
    with_kernel = torch.optim.Adam(params, lr=0.01, fused=True)
    with_kernel.step()
    optimizer = adam(params)
    optimizer.load_state_dict(with_kernel.state_dict())
    optimizer.step()
    assert optimizer.tensors == 4


def test_a_copy_and_a_file_of_it_are_fused_as_well() -> None:
    params = [Parameter(torch.ones(3)), Parameter(torch.ones(4))]
    optimizer = adam(params)
    give_gradients(params, 0, set())
    optimizer.step()
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert isinstance(other, FusedOptimizer) and isinstance(other.unfused, torch.optim.Adam)
        copied = other.param_groups[0]["params"]
        for each in (params, copied):
            give_gradients(each, 1, set())
        other.step()
        assert state_of(other)[0][0]["step"] == bits(torch.tensor(2.0))
    assert state_of(optimizer)[0][0]["step"] == bits(torch.tensor(1.0))
    assert repr(optimizer).startswith("fuse(Adam (")
    assert fuse(optimizer) is optimizer


def test_autograd_notices_that_weights_have_changed() -> None:
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    optimizer = adam(layers.parameters())
    layers(torch.ones(2, 4)).sum().backward()
    loss = layers(torch.ones(2, 4)).sum()
    optimizer.step()
    assert optimizer.tensors == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_no_gradient_is_held_after_zero_grad() -> None:
    params = [Parameter(torch.ones(n)) for n in (3, 4, 100)]
    optimizer = adam(params)
    with small():
        give_gradients(params, 0, set())
        memory = [p.grad.untyped_storage()._weak_ref() for p in params if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    assert len(memory) == 3 and all(torch.UntypedStorage._expired(weak) for weak in memory)
    for weak in memory:
        torch.UntypedStorage._free_weak_ref(weak)


def test_a_sparse_gradient_is_the_optimizers_own_affair() -> None:
    def rows(make: Callable[[Optimizer], Any]) -> list[Any]:
        table, bias = nn.Embedding(6, 3, sparse=True), Parameter(torch.ones(4))
        nn.init.ones_(table.weight)
        optimizer = make(torch.optim.SGD([table.weight, bias], lr=0.1, foreach=False))
        for _ in range(2):
            optimizer.zero_grad()
            (table(torch.tensor([1, 4, 1])).sum() + bias.sum()).backward()
            optimizer.step()
        return [bits(table.weight), bits(bias)]

    assert rows(fuse) == rows(lambda optimizer: optimizer)
    table = nn.Embedding(6, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="Adam does not support sparse gradients"):
        adam(table.parameters()).step()


def test_an_error_in_a_step_leaves_groups_and_state_as_they_were() -> None:
    params = [Parameter(torch.ones(3)), Parameter(torch.ones(3))]
    optimizer = adam(params)
    give_gradients(params, 0, set())
    optimizer.step()
    optimizer.param_groups[0]["lr"] = "fast"
    with pytest.raises(TypeError):
        optimizer.step()
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], params, strict=True))
    assert optimizer.state.keys() == set(params)


# -- which optimizers ----------------------------------------------------------------------------------------------


class Signed(torch.optim.Optimizer):
    """A user's own, which says that it is element-wise, and makes its state anew in every step."""

    elementwise = True

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "calls": 0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["calls"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["mean"] = 0.9 * state.get("mean", 0.0) + p.grad
                    state["count"] = state.get("count", 0) + 1
                    p.sub_(state["mean"].sign() / state["count"], alpha=group["lr"])


class NotSigned(Signed):
    """One that changes what it inherits, and says nothing."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()


def test_a_users_optimizer_may_say_that_it_is_elementwise() -> None:
    def trained(make: Callable[[Optimizer], Any]) -> Any:
        params = [Parameter(torch.ones(n)) for n in (3, 4, 100, 30)]
        optimizer = make(Signed(params))
        for step in range(5):
            give_gradients(params, step, {3} if step == 2 else set())
            optimizer.step()
        return [bits(p) for p in params], state_of(optimizer)

    with small():
        assert trained(fuse) == trained(lambda optimizer: optimizer)


def one() -> list[Parameter]:
    return [Parameter(torch.ones(2, 2))]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.optim.LBFGS(one()), "optimizer=LBFGS: it is not element-wise: its step is made of inner"),
        (lambda: torch.optim.Muon(one()), "optimizer=Muon: it is not element-wise: it orthogonalizes whole matrices"),
        (lambda: torch.optim.SparseAdam(one()), "optimizer=SparseAdam: it is not element-wise: it updates the rows"),
        (lambda: torch.optim.Adafactor(one()), "optimizer=Adafactor: it is not element-wise: it keeps means of rows"),
        (lambda: NotSigned(one()), "optimizer=NotSigned: it is not known to be element-wise"),
        (lambda: torch.optim.SGD(one(), fused=True), r"optimizer=SGD\(fused=True\): group 0 has torch's own fused"),
        (lambda: torch.optim.Adam(one(), differentiable=True), r"optimizer=Adam\(differentiable=True\): its step is"),
        (lambda: nn.Linear(1, 1), "optimizer: a Linear; expected a torch.optim.Optimizer"),
    ],
)
def test_all_others_are_refused_by_name_with_the_reason(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        fuse(make())
    assert "\n" not in str(refusal.value)


def test_every_optimizer_of_torch_is_accepted_or_refused_for_a_reason() -> None:
    """A new one in torch is noticed here."""
    kinds = {x for x in vars(torch.optim).values() if isinstance(x, type) and issubclass(x, Optimizer)} - {Optimizer}
    refused = {torch.optim.LBFGS, torch.optim.Muon, torch.optim.SparseAdam, torch.optim.Adafactor}
    assert kinds == {kind for kind, _ in OPTIMIZERS.values()} | refused
