"""Which module draws a campaign."""

from __future__ import annotations

from omegaconf import OmegaConf

from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.results import records


def module_of(campaign: str) -> str:
    """Name of the module, which its file declares. FileNotFoundError for a campaign that has none."""
    figure = "runs" if campaign == records.ADHOC else OmegaConf.load(FOLDER / "campaign" / f"{campaign}.yaml").figure
    return f"bagua_bench.figures.{figure}"
