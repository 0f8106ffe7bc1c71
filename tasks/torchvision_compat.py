"""Makes torchvision importable beside a CPU build of torch; everything else imports torchvision through this module.

The wheel on PyPI is a CUDA build: beside a CPU build of torch its compiled library does not load, and its Python
part then fails because two operators are not declared. Declaring their schemas is enough for models, transforms and
datasets; detection operators still raise torchvision's own error. transformers probes for torchvision, so import
this module before it as well. Where torchvision matches torch this does nothing.
"""

from __future__ import annotations

import torch


def _declare_operators() -> torch.library.Library | None:
    if torch.version.cuda is not None or hasattr(torch.ops.torchvision, "nms"):
        return None
    try:
        import torchvision  # noqa: F401  a matching CPU build registers its own operators
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    else:
        return None
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


_LIBRARY = _declare_operators()  # the declarations live as long as this reference

import torchvision  # noqa: E402

__all__ = ["torchvision"]
