"""Speech Transformer (Dong et al. 2018), encoder-decoder on 80-dimensional filter banks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Adam, Optimizer
from torch.utils.data import Dataset

from tasks import filter_bank
from tasks.base import Batch
from tasks.filter_bank import FFT, HOP, MELS, RATE, log_mel
from tasks.loading.cached import CachedDataset
from tasks.sequences import Sample, SequenceTask, Spread, log_normal_median

with suppress(ModuleNotFoundError):  # transformers can do without torchvision, but probes for it
    from tasks import torchvision_compat  # noqa: F401

_TONE = int(0.12 * RATE)  # samples per spoken token
_FIRST_TOKEN, _SYMBOLS = 4, 40
_TEST = 32
_SIGMA = 0.4  # of the logarithm of an utterance's length: an assumption, no distribution is published
_IGNORED = -100  # the loss leaves this label out


class Transformer(SequenceTask):
    """transformers' Speech2Text: 12 encoder and 6 decoder layers of width 512, vocabulary of 5,000.

    Width, feed-forward width and vocabulary are not published for the AISHELL-2 runs; these are the usual ones
    of a base model for Mandarin characters. Data: every token is a two-tone chord of 0.12 s in noise, `tokens`
    of them per utterance. Epochs have the 1,009,223 utterances of AISHELL-2's training set.

    With a `sampler` (`SequenceTask`) utterances differ in length: log-normal with a mean of `tokens` (30 are 3.6 s;
    AISHELL-2 has 1000 hours in 1,009,223 utterances, 3.57 s each: Du et al. 2018), clipped to a quarter and four times
    of it. cache: a folder, or the URL of a Redis server, for their filter banks.
    """

    def __init__(
        self,
        scale: Literal["paper", "cpu", "tiny"] = "paper",
        batch: int = 32,
        tokens: int = 30,
        lr: float = 3e-4,
        sampler: Literal["random", "balanced", None] = None,
        batching: Literal["mixed", "similar"] = "mixed",
        samples: int | None = None,
        cache: str | None = None,
    ) -> None:
        spread = Spread(log_normal_median(tokens, _SIGMA), _SIGMA, max(1, tokens // 4), 4 * tokens)
        super().__init__(batch, 1_009_223, spread, sampler, batching, samples)
        self._tokens, self._lr, self._cache = tokens, lr, cache
        self._width, self._layers = (64, (2, 1)) if scale == "tiny" else (512, (12, 6))
        self._vocabulary = _FIRST_TOKEN + _SYMBOLS if scale == "tiny" else 5000

    def model(self) -> nn.Module:
        from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

        width, layers = self._width, self._layers
        config = Speech2TextConfig(
            vocab_size=self._vocabulary,
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

    def dataset(self) -> Dataset[Sample]:
        data = super().dataset()
        if self._cache is None:
            return data
        return CachedDataset(data, self._cache, self.about_data(), [Transformer, filter_bank])

    def alike(self, number: int, generator: torch.Generator) -> Batch:
        """Filter banks (number, frames, 80) and tokens (number, tokens + 1), which end with token 2."""
        return _utterances(number, self._tokens, generator)

    def sample(self, length: int, generator: torch.Generator) -> Sample:
        """Filter banks (frames, 80) and tokens (length + 1,)."""
        features, labels = _utterances(1, length, generator)
        return features[0], labels[0]

    def padded(self, samples: Sequence[Sample]) -> Batch:
        """Filter banks and tokens as of `alike`, and which of the frames are none of the padding (number, frames)."""
        features, labels = zip(*samples, strict=True)
        frames = torch.tensor([len(one) for one in features])
        mask = (torch.arange(int(frames.max())) < frames[:, None]).long()
        return pad_sequence(features, True), pad_sequence(labels, True, _IGNORED), mask

    def multiply_adds(self, length: int | None) -> float:
        tokens = self._tokens if length is None else length
        frames, width = (tokens * _TONE - FFT) // HOP + 1, self._width
        half = (frames - 1) // 2 + 1
        heard, said = (half - 1) // 2 + 1, tokens + 1  # positions of the encoder and of the decoder
        convolutions = 5 * half * MELS * 2 * width + 5 * heard * width * 2 * width
        encoder = 12 * width**2 * heard + 2 * width * heard**2
        decoder = (14 * said + 2 * heard) * width**2 + 2 * width * said * (said + heard)
        head = said * width * self._vocabulary
        return float(convolutions + self._layers[0] * encoder + self._layers[1] * decoder + head)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        features, labels, *mask = batch
        loss: Tensor = model(input_features=features, attention_mask=mask[0] if mask else None, labels=labels).loss
        return loss

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Share of wrong tokens when every token is predicted from the true ones before it."""
        device, training = next(model.parameters()).device, model.training
        model.eval()
        held_out = self.held_out(_TEST)
        wrong = total = 0
        for i in range(0, _TEST, self.batch):
            features, truth, *mask = (part[i : i + self.batch].to(device) for part in held_out)
            said = model(input_features=features, attention_mask=mask[0] if mask else None, labels=truth).logits
            counts = truth != _IGNORED
            wrong += int((said.argmax(-1) != truth)[counts].sum())
            total += int(counts.sum())
        model.train(training)
        return {"token_error_rate": wrong / total}


def _utterances(number: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Filter banks (number, frames, 80) and tokens (number, length + 1), which end with token 2."""
    symbols = torch.randint(0, _SYMBOLS, (number, length), generator=generator)
    seconds = torch.arange(_TONE) / RATE
    low, high = 300 + 120 * (symbols % 8), 1500 + 450 * (symbols // 8)
    tones = sum(torch.sin(2 * math.pi * f[..., None] * seconds) for f in (low, high))
    assert isinstance(tones, Tensor)
    waveform = tones.flatten(1)
    noise = torch.randn(waveform.shape, generator=generator)
    labels = torch.cat([symbols + _FIRST_TOKEN, torch.full((number, 1), 2)], 1)
    return log_mel(waveform + 0.1 * noise), labels
