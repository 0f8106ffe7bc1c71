"""Defines a distributed training algorithm and all that it may know: buckets and a communicator."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

Own = TypeVar("Own", bound="Algorithm")


@dataclass(frozen=True)
class Least:
    """`Annotated[int, Least(1)]`: the least value that a constructor's argument may have."""

    value: float


@dataclass(frozen=True)
class Above:
    """`Annotated[float, Above(0)]`: a constructor's argument must be greater than this value."""

    value: float


class Op(Enum):
    """Reduction of a collective."""

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"


class When(Enum):
    """The moment of a training step at which the engine runs `Algorithm.communicate`."""

    BACKWARD = "backward"
    """Bucket by bucket, as soon as a bucket's gradients are complete; `finish` at the end of the backward pass."""
    FORWARD = "forward"
    """From the start of the forward pass, beside forward and backward; `finish` before the optimizer step."""
    STEP = "step"
    """After the optimizer step; `finish` there as well."""
    ASYNC = "async"
    """On its own, in a loop of averaging rounds that training does not wait for; such a step has no other turn."""


class Carry(Enum):
    """Rules for a rank's state when training goes on with another number of ranks."""

    KEEP = "keep"
    """It is equal on all ranks, and stays."""
    AVERAGE = "average"
    """Every rank gets the mean of all."""
    ZERO = "zero"
    """It starts over, as `Algorithm.start` makes it."""


class Comm(Protocol):
    """The ranks an algorithm talks to. Every call is collective: all ranks make it, in the same order.

    Tensors are contiguous. A call raises `bagua_bench.comm.CommError` when a peer died or the time-out passed.
    """

    @property
    def rank(self) -> int:
        """Own position, 0 ... size - 1."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def intra(self) -> Comm | None:
        """The ranks of the same server, leader first; None where every server has one rank."""

    @property
    def inter(self) -> Comm | None:
        """The leaders of the servers; None on ranks that are no leaders, and where `intra` is None."""

    def all_reduce(self, x: Tensor, op: Op = Op.SUM) -> None:
        """Reduce x (any shape) over all ranks, in place."""

    def reduce(self, x: Tensor, dst: int = 0, op: Op = Op.SUM) -> None:
        """Reduce x over all ranks into rank dst's x; x of the others is undefined afterwards."""

    def broadcast(self, x: Tensor, src: int = 0) -> None:
        """Overwrite x with rank src's x."""

    def all_to_all(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Send row r of x (size, ...) to rank r; return the rows received, in the order of their sources.

        They are written to `out`, if given, which must not overlap x.
        """

    def all_gather(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return everyone's x (...) stacked in the order of ranks, (size, ...), in `out` if given."""

    def gather_ragged(self, x: Tensor) -> list[Tensor]:
        """Return everyone's 1-D x, whose lengths may differ, in the order of ranks."""

    def reduce_scatter(self, x: Tensor, op: Op = Op.SUM) -> Tensor:
        """Reduce x (size, ...) over all ranks; return row `rank` of the result, (...)."""

    def exchange(self, x: Tensor, peers: Sequence[int]) -> list[Tensor]:
        """Send x to every peer and return the tensor received from each; peers must name each other."""

    def send_receive(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send each tensor to the rank beside it, and overwrite each of `receives` with what that rank sends.

        Messages from one rank to another arrive in their order; lengths and types agree on both sides.
        """

    def subgroup(self, ranks: Sequence[int]) -> Comm:
        """The communicator of some of these ranks, in ascending order; called by these alone, once each."""

    def barrier(self) -> None:
        """Return when every rank has called it."""


Message = tuple[int, Tensor]
"""The other rank, and the tensor that is sent to it or received from it."""


@dataclass
class Bucket:
    """Some parameters of a model, flat: `weight` and `grad` share storage with the parameters.

    `weight` and `grad` are 1-D, of equal length, zero-padded behind the first `elements` to a multiple of the
    number of ranks. `grad` is empty when the algorithm does not communicate gradients. `state` is the algorithm's
    own: flat tensors, those as long as `weight` laid out like it; `each` holds lists of tensors of any shape, one per
    parameter. The engine saves and restores both by parameter.
    """

    name: str
    params: list[Parameter]
    weight: Tensor
    grad: Tensor
    state: dict[str, Tensor] = field(default_factory=dict)
    each: dict[str, list[Tensor]] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """Number of parameters, without padding."""
        return sum(p.numel() for p in self.params)

    def views(self, flat: Tensor) -> list[Tensor]:
        """`flat` (laid out like `weight`) as one view per parameter, in the parameters' shapes and strides."""
        views, offset = [], flat.storage_offset()
        for p in self.params:
            views.append(flat.as_strided(p.size(), p.stride(), offset))
            offset += p.numel()
        return views


Piece = Callable[[Bucket, Comm, int], None]
Moment = Callable[[Bucket, int], None]


@dataclass(frozen=True)
class Turn:
    """A part of the communication of a step: on which buckets, when, and when its result lands."""

    when: When
    buckets: tuple[int, ...] | None = None
    """Their positions; None: all."""
    land: int = 0
    """`finish` runs this many steps later, at the same moment. `communicate` then works on what `prepare` took."""
    communicate: Piece | None = None
    """Runs instead of the algorithm's own, where a step has two parts; None: the algorithm's three methods."""
    prepare: Moment | None = None
    """Belongs to such a `communicate`; None: nothing."""
    finish: Moment | None = None
    """Belongs to such a `communicate`; None: nothing."""


class Algorithm(ABC):
    """One distributed training algorithm, written synchronously; the engine supplies overlap and order.

    Subclasses set the class attributes and implement `communicate`. Steps are counted from 1.
    """

    when: ClassVar[When] = When.BACKWARD
    gradients: bool = True
    """Whether `communicate` reads or writes `Bucket.grad`."""
    one_bucket: ClassVar[bool] = False
    """Whether all parameters (of one dtype) belong in a single bucket, whatever the bucket size."""
    line_share: ClassVar[float] = 1.0
    """Bytes that it sends in a step over those of an all-reduce of the same buckets, for their size; with a warm-up the
    mean over a training run."""
    consensus: ClassVar[float] = 0.0
    """Largest allowed distance of a replica from the mean of all, relative to a replica's mean norm; 0: bit-equal."""
    carry: ClassVar[Mapping[str, Carry]] = {}
    """For every name in `Bucket.state` and `Bucket.each`: the rule for another number of ranks."""
    _given: tuple[tuple[Any, ...], dict[str, Any]]
    pause: float = 0.0
    """Seconds between two rounds of an algorithm that runs ASYNC."""

    def __new__(cls: type[Own], *args: Any, **kwargs: Any) -> Own:
        """Note the arguments, by which ranks compare their algorithms. ValueError for one that is not allowed."""
        made = super().__new__(cls)
        made._given = (args, kwargs)
        hints = get_type_hints(cls.__init__, include_extras=True)
        for name, value in inspect.signature(cls.__init__).bind(made, *args, **kwargs).arguments.items():
            hint = hints.get(name)
            if get_origin(hint) is Literal and value not in get_args(hint):
                raise ValueError(f"{name}={value}: allowed: {', '.join(map(str, get_args(hint)))}")
            for bound in getattr(hint, "__metadata__", ()):
                if isinstance(bound, Least) and value < bound.value:
                    raise ValueError(f"{name}={value}: must be at least {bound.value}")
                if isinstance(bound, Above) and value <= bound.value:
                    raise ValueError(f"{name}={value}: must be above {bound.value}")
        return made

    def described(self) -> str:
        """Class and arguments as text; an argument that is an object appears as its class."""
        args, kwargs = self._given
        named = [_plain(value) for value in args] + [f"{key}={_plain(value)}" for key, value in kwargs.items()]
        return f"{type(self).__name__}({', '.join(named)})"

    def optimizer(self, given: Optimizer) -> Optimizer:
        """Return the optimizer to train with: the one `given`, unless the algorithm needs another."""
        return given

    def partition(self, params: Sequence[Parameter]) -> Sequence[Sequence[Parameter]] | None:
        """Group the trained parameters into buckets; None: by size, starting with those that were registered last."""
        return None

    def turns(self, step: int) -> Sequence[Turn]:
        """Return what is communicated in this step, the same on all ranks; by default all buckets, at `when`."""
        return (Turn(self.when),)

    def consumes_gradients(self, step: int) -> bool:
        """Whether `communicate` uses the gradients up, so that changing them after the backward pass does nothing."""
        return False

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        """Create the per-bucket state. Weights are equal on all ranks. Called again to start over."""

    def stop(self, optimizer: Optimizer) -> None:
        """Clean up after the engine: an optimizer that replaced the user's leaves nothing behind on it (`release`)."""
        release = getattr(optimizer, "release", None)
        if release is not None:
            release()

    def prepare(self, bucket: Bucket, step: int) -> None:
        """Copy what `communicate` needs from weights or gradients, on the training thread, just before it.

        Only turns that run ASYNC or land in a later step need it: in all others nothing changes during `communicate`.
        """

    @abstractmethod
    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        """Run the algorithm on one bucket. Collective; buckets come in the same order on every rank."""

    def finish(self, bucket: Bucket, step: int) -> None:
        """Publish the result of `communicate` in `step`, on the training thread, while no other reads the weights."""

    def settle(self, buckets: Sequence[Bucket], comm: Comm) -> None:
        """Make the replicas equal at the end of training: the mean of all, unless the algorithm knows better."""
        if self.consensus > 0:
            for bucket in buckets:
                comm.all_reduce(bucket.weight, Op.AVG)


def _plain(value: object) -> str:
    return repr(value) if isinstance(value, bool | int | float | str | list | tuple | None) else type(value).__name__
