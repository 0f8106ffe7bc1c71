"""The reader for machines without PyYAML reads the files of algorithms and tasks as OmegaConf does."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from bagua_bench import config, plain_yaml

FILES = sorted(path for group in ("algo", "task") for path in (config.CONF / group).glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_reads_what_omegaconf_reads(path: Path) -> None:
    assert plain_yaml.read(path) == OmegaConf.to_container(OmegaConf.load(path), resolve=False)
