"""Log-mel filter banks in plain torch (torchaudio has no build for current CPU versions of torch)."""

from __future__ import annotations

import torch
from torch import Tensor

RATE = 16_000
"""Samples per second."""
WINDOW, HOP, FFT, MELS = 400, 160, 512, 80
"""25 ms windows every 10 ms; 80 bands from 20 Hz to 8 kHz."""


def _mel(hertz: Tensor) -> Tensor:
    return 2595 * torch.log10(1 + hertz / 700)


def mel_matrix() -> Tensor:
    """Triangular filters, evenly spaced in mel: (FFT // 2 + 1, MELS)."""
    points = torch.linspace(float(_mel(torch.tensor(20.0))), float(_mel(torch.tensor(RATE / 2))), MELS + 2)
    bins = _mel(torch.linspace(0, RATE / 2, FFT // 2 + 1))[:, None]
    left, centre, right = points[:-2], points[1:-1], points[2:]
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    return torch.minimum(rising, falling).clamp(min=0)


def log_mel(waveform: Tensor) -> Tensor:
    """Normalised log-mel energies of waveforms (batch, samples): (batch, frames, MELS)."""
    spectrum = torch.stft(waveform, FFT, HOP, WINDOW, torch.hann_window(WINDOW), center=False, return_complex=True)
    energies = torch.log(spectrum.abs().square().transpose(1, 2) @ mel_matrix() + 1e-6)
    return (energies - energies.mean((1, 2), keepdim=True)) / energies.std((1, 2), keepdim=True)
