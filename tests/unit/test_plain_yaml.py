"""The reader for machines without PyYAML reads the files of algorithms and tasks as OmegaConf does."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from bagua_bench.configuration import plain_yaml
from bagua_bench.configuration.conf_folder import FOLDER

FILES = sorted(path for group in ("algo", "task") for path in (FOLDER / group).glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_reads_what_omegaconf_reads(path: Path) -> None:
    assert plain_yaml.read(path) == OmegaConf.to_container(OmegaConf.load(path), resolve=False)
