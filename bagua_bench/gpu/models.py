"""Models of the published sizes in plain torch: a machine with a GPU may have nothing else installed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_VGG16 = [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0]


class Given(nn.Module):
    """Some parameters whose gradients are given: forward(g) is their scalar product with g (N,)."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.linspace(-1, 1, size) for size in sizes])

    def forward(self, g: Tensor) -> Tensor:
        pieces = zip(self.parts, g.split([part.numel() for part in self.parts]), strict=True)
        return torch.stack([(part * piece).sum() for part, piece in pieces]).sum()


def vgg16(shrink: int = 1) -> nn.Module:
    """VGG16 for images of 224 x 224 (138,357,544 parameters); all widths divided by `shrink`."""
    layers: list[nn.Module] = []
    width = 3
    for wanted in _VGG16:
        if wanted:
            layers += [nn.Conv2d(width, wanted // shrink, 3, padding=1), nn.ReLU(inplace=True)]
            width = wanted // shrink
        else:
            layers.append(nn.MaxPool2d(2))
    hidden = 4096 // shrink
    pool = nn.AdaptiveAvgPool2d(7)
    head = [nn.Linear(width * 49, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, hidden), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, pool, nn.Flatten(), *head, nn.Linear(hidden, 1000 // shrink))


def bert_large(shrink: int = 1) -> nn.Module:
    """The encoder of BERT-Large, for (batch, length, 1024) embedded tokens; width and depth divided by `shrink`."""
    width = 1024 // shrink
    layer = nn.TransformerEncoderLayer(width, 16 // min(shrink, 8), 4 * width, 0.0, "gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 24 // shrink or 1, enable_nested_tensor=False)


def workload(name: str, shrink: int, device: torch.device) -> tuple[nn.Module, Tensor]:
    """A model on `device` and a batch of the paper's size (VGG16: 32 images, BERT-Large: 6 x 384 tokens)."""
    torch.manual_seed(1)
    side = 224 if shrink == 1 else 32
    if name == "vgg16":
        return vgg16(shrink).to(device), torch.randn(32 // shrink, 3, side, side, device=device)
    return bert_large(shrink).to(device), torch.randn(6, 384 // shrink, 1024 // shrink, device=device)
