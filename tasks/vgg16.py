"""VGG16 (Simonyan and Zisserman 2014) on images: 138,357,544 parameters at scale paper and cpu."""

from __future__ import annotations

from typing import Literal

from torch import nn

from tasks.images import ImageTask
from tasks.torchvision_compat import torchvision

_LAYERS = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"]


class VGG16(ImageTask):
    """torchvision's VGG16. At scale tiny all widths are divided by 8 and the classifier sees 1 x 1 pixel.

    dropout: in the classifier. Other arguments: `ImageTask`.
    """

    def __init__(
        self,
        scale: Literal["paper", "cpu", "tiny"] = "paper",
        data: str = "digits",
        batch: int = 32,
        image: int = 224,
        dropout: float = 0.5,
        lr: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        workers: int = 0,
        cache: str | None = None,
    ) -> None:
        super().__init__(data, batch, image, lr, momentum, weight_decay, workers, cache)
        self._tiny, self._dropout = scale == "tiny", dropout

    def model(self) -> nn.Module:
        if not self._tiny:
            model: nn.Module = torchvision.models.vgg16(dropout=self._dropout)
            return model
        features = torchvision.models.vgg.make_layers(
            [width if isinstance(width, str) else width // 8 for width in _LAYERS]
        )
        model = torchvision.models.VGG(features, num_classes=10, init_weights=False)
        model.avgpool = nn.AdaptiveAvgPool2d(1)
        model.classifier = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(self._dropout), nn.Linear(512, 10))
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        return model
