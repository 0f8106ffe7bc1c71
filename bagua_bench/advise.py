"""`python -m bagua_bench.advise task=vgg16 cluster=bagua_paper network.bandwidth=10gbit network.latency=1ms`.

Ranks algorithm x transport x bucket size by the simulated time of a step. Arguments: those of `python -m bagua_bench`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from bagua_bench import config
from bagua_bench.campaign import compose_cell
from bagua_bench.config import CONF, ConfigError
from bagua_bench.explain import explain
from bagua_bench.simulate import advise
from bagua_bench.validate import SCHEDULES, validate

_SHOWN = 15
_STEPS = ("mode=simulate", "run.steps=2", "run.untimed=1")


def ranked(arguments: list[str]) -> pd.DataFrame:
    """The table of advice. ConfigError for a combination that cannot be run at all."""
    config.register()
    with initialize_config_dir(str(CONF), version_base=None):
        base = compose_cell([*_STEPS, *arguments])
        validate(base)
        known = advise.options(base["cluster"], base["transport"]["name"])
        transports = [name for name in known if name in advise.available("transport")]
        cells = [cell for name in transports for cell in _cells([*_STEPS, *arguments, f"transport={name}"])]
    return advise.advise(cells)


def _cells(arguments: list[str]) -> Iterator[dict[str, Any]]:
    """Every algorithm that can be run with these arguments, in the variants worth comparing."""
    for algo in advise.available("algo"):
        first = compose_cell([*arguments, f"algo={algo}"])
        if first["algo"]["_target_"] in SCHEDULES:
            continue
        for variant in advise.variants(first):
            cell = compose_cell([*arguments, f"algo={algo}", *variant])
            try:
                validate(cell)
            except ConfigError:
                continue  # not on so many ranks
            yield cell


def main() -> int:
    """Exit code 0; 2 if the configuration is wrong."""
    arguments = sys.argv[1:]
    if any(text in ("-h", "--help") for text in arguments):
        print(__doc__)
        return 0
    try:
        table = ranked(arguments)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (HydraException, OmegaConfBaseException) as error:
        print(explain(error, arguments), file=sys.stderr)
        return 2
    best = table.drop_duplicates(["algorithm", "transport"]).copy()  # with its best bucket size
    ddp = best.query("algorithm == 'ddp'").step_seconds.min()
    best.insert(best.columns.get_loc("uncertainty"), "times_ddp", ddp / best.step_seconds)
    tied = best[best.step_seconds <= best.step_seconds.iloc[0] * (1 + best.uncertainty.iloc[0])]
    with pd.option_context("display.width", 220, "display.max_colwidth", 120):
        print(best.head(_SHOWN).to_string(index=False, float_format="%.4g"))
    if len(tied) > 1:
        print(f"within the model's uncertainty of the fastest: {', '.join(tied.algorithm + ' over ' + tied.transport)}")
    print("uncertainty: 9 of 10 steps that the cluster was calibrated with are met within this share (0.25: none were)")
    print("decentralised and asynchronous algorithms learn something else per step: compare accuracy before you choose")
    return 0


if __name__ == "__main__":
    sys.exit(main())
