"""Bayesian optimisation of a few whole numbers with Optuna (docs/design.md, Autotuning). No torch import of its own."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from bagua_bench.results.result import Trial, Values

_BEFORE_MODEL = 3  # trials before the model of the score is used; at random, if fewer were given


def require() -> None:
    """ModuleNotFoundError, one line, without Optuna."""
    if find_spec("optuna") is None:
        raise ModuleNotFoundError("autotuning needs Optuna: pip install 'bagua-bench[autotune]'")


class Search:
    """Proposes values to try, and finds the best. The same seed and scores give the same proposals.

    space: the values that every parameter may have, ascending and evenly spaced.
    first: what to try first, one after the other; a parameter that is missing there is proposed.
    """

    def __init__(self, space: Mapping[str, Sequence[int]], seed: int, first: Sequence[Values] = ()) -> None:
        require()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._distributions = {
            name: optuna.distributions.IntDistribution(allowed[0], allowed[-1]) for name, allowed in space.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=_BEFORE_MODEL)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        for values in first:
            self._study.enqueue_trial(dict(values))
        self.trials: list[Trial] = []
        """Everything that was tried, in order."""

    def ask(self) -> Values:
        """The next values to try; `tell` their score before the next `ask`."""
        self._asked = self._study.ask(dict(self._distributions))
        return dict(self._asked.params)

    def tell(self, score: float) -> None:
        """Say what the values asked for last have scored."""
        self._study.tell(self._asked, score)
        self.trials.append(Trial(dict(self._asked.params), score))

    @property
    def best(self) -> Trial:
        """The trial with the highest score so far."""
        return max(self.trials, key=lambda trial: trial.score)
