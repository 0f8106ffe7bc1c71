"""BERT-Large for extractive question answering (Devlin et al. 2018): 334,094,338 parameters, no pooler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from tasks.base import Batch, Task

with suppress(ModuleNotFoundError):  # transformers can do without torchvision, but probes for it
    from tasks import torchvision_compat  # noqa: F401

_OPEN, _CLOSE = 1, 2  # the tokens around the answer
_TEST = 32


class BertLarge(Task):
    """transformers' BertForQuestionAnswering on generated questions: the answer stands between two marker tokens.

    Epochs have the 88,641 features of SQuAD v1.1 at length 384, stride 128. `length` is the number of tokens.
    """

    synthetic = True
    samples_per_epoch = 88_641

    def __init__(
        self, scale: Literal["paper", "cpu", "tiny"] = "paper", batch: int = 6, length: int = 384, lr: float = 3e-5
    ) -> None:
        self.batch, self._length, self._lr, self._tiny = batch, length, lr, scale == "tiny"

    def model(self) -> nn.Module:
        from transformers import BertConfig, BertForQuestionAnswering

        if self._tiny:
            config = BertConfig(
                vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
            )
        else:
            config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
        self._vocabulary = config.vocab_size
        model: nn.Module = BertForQuestionAnswering(config)
        return model

    def optimizer(self, model: nn.Module) -> Optimizer:
        return AdamW(model.parameters(), lr=self._lr, weight_decay=0.0, fused=True)

    def _questions(self, count: int, generator: torch.Generator) -> Batch:
        """Tokens (count, length) and the first and last position of each answer."""
        tokens = torch.randint(3, 200, (count, self._length), generator=generator)
        start = torch.randint(1, self._length - 6, (count,), generator=generator)
        end = start + torch.randint(0, 4, (count,), generator=generator)
        rows = torch.arange(count)
        tokens[rows, start - 1] = _OPEN
        tokens[rows, end + 1] = _CLOSE
        return tokens, start, end

    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(1_000_003 * seed + rank + 1)
        while True:
            yield self._questions(self.batch, generator)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens, start, end = batch
        loss: Tensor = model(input_ids=tokens, start_positions=start, end_positions=end).loss
        return loss

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """F1 of the predicted and the true span, as for SQuAD."""
        device, training = next(model.parameters()).device, model.training
        model.eval()
        tokens, start, end = self._questions(_TEST, torch.Generator().manual_seed(0))
        scores = []
        for i in range(0, _TEST, self.batch):
            output = model(input_ids=tokens[i : i + self.batch].to(device))
            guess = zip(output.start_logits.argmax(1).tolist(), output.end_logits.argmax(1).tolist(), strict=True)
            truth = zip(start[i : i + self.batch].tolist(), end[i : i + self.batch].tolist(), strict=True)
            scores += [_overlap(*g, *t) for g, t in zip(guess, truth, strict=True)]
        model.train(training)
        return {"f1": sum(scores) / len(scores)}


def _overlap(start: int, end: int, true_start: int, true_end: int) -> float:
    common = min(end, true_end) - max(start, true_start) + 1
    if common <= 0:
        return 0.0
    return 2 * common / (end - start + 1 + true_end - true_start + 1)
