"""BERT-Large for extractive question answering (Devlin et al. 2018): 334,094,338 parameters, no pooler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW, Optimizer

from tasks.base import Batch
from tasks.sequences import Sample, SequenceTask, Spread

with suppress(ModuleNotFoundError):  # transformers can do without torchvision, but probes for it
    from tasks import torchvision_compat  # noqa: F401

_OPEN, _CLOSE = 1, 2  # the tokens around the answer
_TEST = 32
_MEDIAN, _SIGMA = 0.41, 0.4  # of the share of `length` that a question and its paragraph take
_LEAST = 8


class BertLarge(SequenceTask):
    """transformers' BertForQuestionAnswering on generated questions: the answer stands between two marker tokens.

    Epochs have the 88,641 features of SQuAD v1.1 at length 384, stride 128. `length` is the number of tokens.

    With a `sampler` (`SequenceTask`) questions differ in length, up to `length`: log-normal around 0.41 of it (157 of
    384 tokens). Of these 1.3 % are longer, as the 88,641 features that the 87,599 questions of SQuAD v1.1 make say of
    theirs (Rajpurkar et al. 2016); the median is an assumption.
    """

    def __init__(
        self,
        scale: Literal["paper", "cpu", "tiny"] = "paper",
        batch: int = 6,
        length: int = 384,
        lr: float = 3e-5,
        sampler: Literal["random", "balanced", None] = None,
        batching: Literal["mixed", "similar"] = "mixed",
        samples: int | None = None,
    ) -> None:
        spread = Spread(_MEDIAN * length, _SIGMA, min(_LEAST, length), length)
        super().__init__(batch, 88_641, spread, sampler, batching, samples)
        self._length, self._lr, self._tiny = length, lr, scale == "tiny"

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

    def alike(self, number: int, generator: torch.Generator) -> Batch:
        """Tokens (number, length) and the first and last position of each answer."""
        return _questions(number, self._length, generator)

    def sample(self, length: int, generator: torch.Generator) -> Sample:
        """Tokens (length,) and the first and last position of the answer."""
        tokens, start, end = _questions(1, length, generator)
        return tokens[0], start[0], end[0]

    def padded(self, samples: Sequence[Sample]) -> Batch:
        """As of `alike`, and which of the tokens are none of the padding (number, length)."""
        tokens, start, end = zip(*samples, strict=True)
        lengths = torch.tensor([len(one) for one in tokens])
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        return pad_sequence(tokens, True), torch.stack(start), torch.stack(end), mask

    def multiply_adds(self, length: int | None) -> float:
        tokens = self._length if length is None else length
        layers, width = (2, 64) if self._tiny else (24, 1024)
        inner = 2 if self._tiny else 4  # of the feed-forward part, in widths
        layer = (4 + 2 * inner) * width**2 * tokens + 2 * width * tokens**2
        return float(layers * layer + 2 * width * tokens)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens, start, end, *mask = batch
        if not mask:
            loss: Tensor = model(input_ids=tokens, start_positions=start, end_positions=end).loss
            return loss
        starts, ends = _logits(model, tokens, mask)
        return (F.cross_entropy(starts, start) + F.cross_entropy(ends, end)) / 2

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """F1 of the predicted and the true span, as for SQuAD."""
        device, training = next(model.parameters()).device, model.training
        model.eval()
        tokens, start, end, *mask = self.held_out(_TEST)
        scores = []
        for i in range(0, _TEST, self.batch):
            part = slice(i, i + self.batch)
            starts, ends = _logits(model, tokens[part].to(device), [own[part].to(device) for own in mask])
            guess = zip(starts.argmax(1).tolist(), ends.argmax(1).tolist(), strict=True)
            truth = zip(start[part].tolist(), end[part].tolist(), strict=True)
            scores += [_overlap(*g, *t) for g, t in zip(guess, truth, strict=True)]
        model.train(training)
        return {"f1": sum(scores) / len(scores)}


def _logits(model: nn.Module, tokens: Tensor, mask: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Of the answer's first and last position, each (number, length); no answer lies in the padding."""
    if not mask:
        output = model(input_ids=tokens)
        return output.start_logits, output.end_logits
    output, padding = model(input_ids=tokens, attention_mask=mask[0]), mask[0] == 0
    return output.start_logits.masked_fill(padding, -math.inf), output.end_logits.masked_fill(padding, -math.inf)


def _questions(number: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (number, length) and the first and last position of each answer."""
    tokens = torch.randint(3, 200, (number, length), generator=generator)
    start = torch.randint(1, length - 6, (number,), generator=generator)
    end = start + torch.randint(0, 4, (number,), generator=generator)
    rows = torch.arange(number)
    tokens[rows, start - 1] = _OPEN
    tokens[rows, end + 1] = _CLOSE
    return tokens, start, end


def _overlap(start: int, end: int, true_start: int, true_end: int) -> float:
    common = min(end, true_end) - max(start, true_start) + 1
    if common <= 0:
        return 0.0
    return 2 * common / (end - start + 1 + true_end - true_start + 1)
