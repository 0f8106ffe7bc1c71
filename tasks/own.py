"""A model that is only described: what it takes to emulate and to simulate it. There is no data, nothing is learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from tasks.base import Batch, Task

with suppress(ModuleNotFoundError):  # transformers can do without torchvision, but probes for it
    from tasks import torchvision_compat

IMAGE = (3, 224, 224)
"""A sample of torchvision's models."""
_GPT2 = ("GPT2Config", ("n_embd", "n_layer", "n_head"))
_BERT = ("BertConfig", ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"))
CONFIGS: Mapping[str, tuple[tuple[str, tuple[str, ...]], tuple[int, ...]]] = {
    "bert-base-uncased": (_BERT, (768, 12, 12, 3072)),
    "bert-large-uncased": (_BERT, (1024, 24, 16, 4096)),
    "gpt2": (_GPT2, (768, 12, 12)),
    "gpt2-medium": (_GPT2, (1024, 24, 16)),
    "gpt2-large": (_GPT2, (1280, 36, 20)),
    "gpt2-xl": (_GPT2, (1600, 48, 25)),
}
"""Models of transformers whose sizes are known without a file; other keys of their configurations are the defaults."""


class Own(Task):
    """A model by its number of parameters, or by name; without data.

    parameters: how many; then there is no model, and its layers are assumed (`bagua_bench.machine.assumed`). model:
    `torchvision:NAME`; `transformers:NAME`, of `CONFIGS`, in the local cache or a folder with a config.json, without a
    head; or `package.module:FUNCTION`, which is called without arguments. length: tokens of a sample; epoch: samples.
    """

    synthetic = True

    def __init__(
        self,
        parameters: float | str | None = None,
        model: str | None = None,
        batch: int = 1,
        length: int = 512,
        epoch: int | None = None,
    ) -> None:
        self.batch, self.samples_per_epoch = batch, epoch or 0
        self._model, self._length = model, length

    def model(self) -> nn.Module:
        """ValueError, one line, for a name that cannot be made."""
        if self._model is None:
            raise ValueError("task.model=null: a number of parameters is no model that could be built")
        library, _, name = self._model.partition(":")
        makers = {"torchvision": _torchvision, "transformers": _transformers}
        made = makers[library](name) if library in makers else _called(library, name)
        if not isinstance(made, nn.Module):
            raise ValueError(f"task.model={self._model}: made {type(made).__name__}; allowed: torch.nn.Module")
        return made

    def optimizer(self, model: nn.Module) -> Optimizer:
        return AdamW(model.parameters())

    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        """Empty images or tokens; NotImplementedError for a function's model, whose input is not known."""
        library = (self._model or "").partition(":")[0]
        if library not in ("torchvision", "transformers"):
            raise NotImplementedError(f"task.model={self._model}: what goes into it is not known")
        while True:
            image = library == "torchvision"
            yield (torch.zeros(self.batch, *IMAGE) if image else torch.zeros(self.batch, self._length).long(),)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The sum of what comes out. NotImplementedError where a forward pass without values fails."""
        try:
            out: Any = model(*batch)
        except Exception as error:
            raise NotImplementedError(f"task.model={self._model}: {type(error).__name__}: {error}") from error
        while not isinstance(out, Tensor):
            out = next(iter(out.values() if isinstance(out, Mapping) else out))
        return out.sum()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}


def _torchvision(name: str) -> nn.Module:
    models = torchvision_compat.torchvision.models
    if name not in models.list_models(module=models):
        allowed = ", ".join(models.list_models(module=models))
        raise ValueError(f"task.model=torchvision:{name}: no such model; allowed: {allowed}")
    made: nn.Module = models.get_model(name, weights=None)
    return made


def _transformers(name: str) -> nn.Module:
    import transformers

    if name in CONFIGS:
        (kind, keys), sizes = CONFIGS[name]
        config = getattr(transformers, kind)(**dict(zip(keys, sizes, strict=True)))
    else:
        try:
            config = transformers.AutoConfig.from_pretrained(name, local_files_only=True)
        except (OSError, ValueError):
            raise ValueError(
                f"task.model=transformers:{name}: nothing is downloaded for it; allowed: a folder with a config.json, "
                f"a model in the local cache, {', '.join(CONFIGS)}"
            ) from None
    made: nn.Module = transformers.AutoModel.from_config(config)
    return made


def _called(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)()
    except Exception as error:  # of the user's own code
        what = (str(error).splitlines() or [""])[0]
        raise ValueError(f"task.model={module}:{name}: {type(error).__name__}: {what}") from error
