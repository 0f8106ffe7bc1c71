"""Where the configuration files are; found without Hydra."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
FOLDER = next(folder for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if folder.is_dir())
"""Inside the package when installed from a wheel, beside it in a checkout."""
