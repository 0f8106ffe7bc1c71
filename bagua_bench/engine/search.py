"""Bayesian optimisation of a few whole numbers with Optuna (docs/design.md, Autotuning). No torch import of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
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
    alike: what settings have in common that come to the same thing. One of them is tried, and its score is all theirs:
    a model that is not told so proposes one after the other of what it knows to be good.
    """

    def __init__(
        self,
        space: Mapping[str, range],
        seed: int,
        first: Sequence[Values] = (),
        alike: Callable[[Values], Hashable] = lambda values: tuple(sorted(values.items())),
    ) -> None:
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
        self._space, self._alike = dict(space), alike
        self._known: dict[Hashable, float] = {}
        self.trials: list[Trial] = []
        """Everything that was tried, in order."""

    def ask(self) -> Values:
        """The next values to try; `tell` their score before the next `ask`."""
        while True:
            self._asked = self._study.ask(dict(self._distributions))
            values = dict(self._asked.params)
            known = self._known.get(self._alike(values))
            near = None if known is None else self._nearest(values)
            if near is None:
                return values
            self._study.tell(self._asked, known)
            self._study.enqueue_trial(dict(near))

    def _nearest(self, values: Values) -> Values | None:
        """What is fewest steps away and comes to something that was not tried yet; None if all was."""
        seen, border = {tuple(values.items())}, [dict(values)]
        for one in border:
            if self._alike(one) not in self._known:
                return one
            for name, allowed in self._space.items():
                for other in (one[name] - allowed.step, one[name] + allowed.step):
                    changed = one | {name: other}
                    if other in allowed and tuple(changed.items()) not in seen:
                        seen.add(tuple(changed.items()))
                        border.append(changed)
        return None

    def tell(self, score: float) -> None:
        """Say what the values asked for last have scored."""
        self._study.tell(self._asked, score)
        self._known[self._alike(self._asked.params)] = score
        self.trials.append(Trial(dict(self._asked.params), score))

    @property
    def best(self) -> Trial:
        """The trial with the highest score so far."""
        return max(self.trials, key=lambda trial: trial.score)
