"""Speech Transformer (Dong et al. 2018), encoder-decoder on 80-dimensional filter banks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from tasks.base import Batch, Task
from tasks.filter_bank import RATE, log_mel

with suppress(ModuleNotFoundError):  # transformers can do without torchvision, but probes for it
    from tasks import torchvision_compat  # noqa: F401

_TONE = int(0.12 * RATE)  # samples per spoken token
_FIRST_TOKEN, _SYMBOLS = 4, 40
_TEST = 32


class Transformer(Task):
    """transformers' Speech2Text: 12 encoder and 6 decoder layers of width 512, vocabulary of 5,000.

    Width, feed-forward width and vocabulary are not published for the AISHELL-2 runs; these are the usual ones
    of a base model for Mandarin characters. Data: every token is a two-tone chord of 0.12 s in noise, `tokens`
    of them per utterance. Epochs have the 1,009,223 utterances of AISHELL-2's training set.
    """

    synthetic = True
    samples_per_epoch = 1_009_223

    def __init__(
        self, scale: Literal["paper", "cpu", "tiny"] = "paper", batch: int = 32, tokens: int = 30, lr: float = 3e-4
    ) -> None:
        self.batch, self._tokens, self._lr, self._tiny = batch, tokens, lr, scale == "tiny"

    def model(self) -> nn.Module:
        from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

        width, layers = (64, (2, 1)) if self._tiny else (512, (12, 6))
        config = Speech2TextConfig(
            vocab_size=_FIRST_TOKEN + _SYMBOLS if self._tiny else 5000,
            d_model=width,
            encoder_layers=layers[0],
            decoder_layers=layers[1],
            encoder_attention_heads=width // 64 * 2,
            decoder_attention_heads=width // 64 * 2,
            encoder_ffn_dim=4 * width,
            decoder_ffn_dim=4 * width,
            conv_channels=2 * width,
        )
        model: nn.Module = Speech2TextForConditionalGeneration(config)
        return model

    def optimizer(self, model: nn.Module) -> Optimizer:
        return Adam(model.parameters(), lr=self._lr, fused=True)

    def _utterances(self, count: int, generator: torch.Generator) -> Batch:
        """Filter banks (count, frames, 80) and tokens (count, tokens + 1), which end with token 2."""
        symbols = torch.randint(0, _SYMBOLS, (count, self._tokens), generator=generator)
        seconds = torch.arange(_TONE) / RATE
        low, high = 300 + 120 * (symbols % 8), 1500 + 450 * (symbols // 8)
        tones = sum(torch.sin(2 * math.pi * f[..., None] * seconds) for f in (low, high))
        assert isinstance(tones, Tensor)
        waveform = tones.flatten(1)
        noise = torch.randn(waveform.shape, generator=generator)
        labels = torch.cat([symbols + _FIRST_TOKEN, torch.full((count, 1), 2)], 1)
        return log_mel(waveform + 0.1 * noise), labels

    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(1_000_003 * seed + rank + 1)
        while True:
            yield self._utterances(self.batch, generator)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        features, labels = batch
        loss: Tensor = model(input_features=features, labels=labels).loss
        return loss

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Share of wrong tokens when every token is predicted from the true ones before it."""
        device, training = next(model.parameters()).device, model.training
        model.eval()
        features, labels = self._utterances(_TEST, torch.Generator().manual_seed(0))
        wrong = 0
        for i in range(0, _TEST, self.batch):
            part, truth = features[i : i + self.batch].to(device), labels[i : i + self.batch].to(device)
            wrong += int((model(input_features=part, labels=truth).logits.argmax(-1) != truth).sum())
        model.train(training)
        return {"token_error_rate": wrong / labels.numel()}
