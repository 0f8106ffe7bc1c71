"""What a distributed training algorithm is, and all that it may know: buckets and a communicator."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

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
    """`Annotated[float, Above(0)]`: what a constructor's argument must be greater than."""

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
    """Bucket by bucket, as soon as a bucket's gradients are complete; done before the optimizer step."""
    FORWARD = "forward"
    """From the start of the forward pass, beside forward and backward; `finish` before the optimizer step."""
    STEP = "step"
    """After the optimizer step, blocking."""
    FREE = "free"
    """On its own, in a loop of averaging rounds that training does not wait for."""


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

    def exchange(self, x: Tensor, peers: Sequence[int]) -> list[Tensor]:
        """Send x to every peer and return the tensor received from each; peers must name each other."""

    def barrier(self) -> None:
        """Return when every rank has called it."""


@dataclass
class Bucket:
    """Some parameters of a model, flat: `weight` and `grad` share storage with the parameters (spec: algorithms 3).

    `weight` and `grad` are 1-D, of equal length, zero-padded behind the first `elements` to a multiple of the
    number of ranks. `grad` is empty when the algorithm does not communicate gradients. `state` is the algorithm's
    own: flat tensors that belong to this bucket; the engine saves and restores it.
    """

    name: str
    params: list[Parameter]
    weight: Tensor
    grad: Tensor
    state: dict[str, Tensor] = field(default_factory=dict)

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


class Algorithm(ABC):
    """One distributed training algorithm, written synchronously; the engine supplies overlap and order.

    Subclasses set the class attributes and implement `communicate`. Steps are counted from 1.
    """

    when: ClassVar[When] = When.BACKWARD
    gradients: bool = True
    """Whether `communicate` reads or writes `Bucket.grad`."""
    one_bucket: ClassVar[bool] = False
    """Whether all parameters (of one dtype) belong in a single bucket, whatever the bucket size."""
    consensus: ClassVar[float] = 0.0
    """Largest allowed distance of a replica from the mean of all, relative to a replica's mean norm; 0: bit-equal."""
    _given: tuple[tuple[Any, ...], dict[str, Any]]
    pause: float = 0.0
    """Seconds between two rounds of an algorithm that runs FREE."""

    def __new__(cls: type[Own], *args: Any, **kwargs: Any) -> Own:
        """Note the arguments, by which ranks compare their algorithms. ValueError for one that is out of its bounds."""
        made = super().__new__(cls)
        made._given = (args, kwargs)
        hints = get_type_hints(cls.__init__, include_extras=True)
        for name, value in inspect.signature(cls.__init__).bind(made, *args, **kwargs).arguments.items():
            for bound in getattr(hints.get(name), "__metadata__", ()):
                if isinstance(bound, Least) and value < bound.value:
                    raise ValueError(f"{name}={value}: must be at least {bound.value}")
                if isinstance(bound, Above) and value <= bound.value:
                    raise ValueError(f"{name}={value}: must be above {bound.value}")
        return made

    def described(self) -> str:
        """Class and arguments as text; of arguments that are objects the class."""
        args, kwargs = self._given
        named = [_plain(value) for value in args] + [f"{key}={_plain(value)}" for key, value in kwargs.items()]
        return f"{type(self).__name__}({', '.join(named)})"

    def optimizer(self, given: Optimizer) -> Optimizer:
        """Return the optimizer to train with: the one `given`, unless the algorithm needs another."""
        return given

    def moment(self, step: int) -> When:
        """When `communicate` runs in this step; `when`, unless the algorithm has stages."""
        return self.when

    def communicates(self, step: int) -> bool:
        """Whether anything is communicated in this step; equal on all ranks."""
        return True

    def consumes_gradients(self, step: int) -> bool:
        """Whether `communicate` uses the gradients up, so that changing them after the backward pass does nothing."""
        return False

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        """Create the per-bucket state. Weights are equal on all ranks. Called again to start over."""

    def stop(self, optimizer: Optimizer) -> None:
        """The engine has ended. An optimizer that replaced the user's leaves nothing behind on it (`release`)."""
        release = getattr(optimizer, "release", None)
        if release is not None:
            release()

    def prepare(self, bucket: Bucket, step: int) -> None:
        """Take from the weights what `communicate` needs, just before it and while nobody writes them.

        Only FREE algorithms need it: in the other moments the weights do not change during `communicate`.
        """

    @abstractmethod
    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        """Run the algorithm on one bucket. Collective; buckets come in the same order on every rank."""

    def finish(self, bucket: Bucket, step: int) -> None:
        """Publish the result of `communicate` on the training thread, while nobody reads the weights."""


def _plain(value: object) -> str:
    return repr(value) if isinstance(value, bool | int | float | str | list | tuple | None) else type(value).__name__
