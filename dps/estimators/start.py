"""Where a fit starts from, and what it leaves for one that goes on from it.

It must not know how a fit runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.models import Model
from dps.optimizers import Optimizer
from dps.training.job import FitResult, Job

__all__ = ["Start"]


@dataclass(frozen=True)
class Start:
    """Where a fit starts from.

    Attributes
    ----------
    params : (n,) array or None
        None starts from the model's own initial parameters.
    centre : (n_features,) array or None
        The centre of the model whose parameters they are, see `LinearModel`.
    state : (state_rows, n) array or None
        None starts from the optimizer's own initial state.
    optimizer : Optimizer or None
        Whose state it is.
    version, epochs : int
        Updates and epochs behind them.
    """

    params: NDArray[np.floating] | None = None
    centre: NDArray[np.float64] | None = None
    state: NDArray[np.floating] | None = None
    optimizer: Optimizer | None = None
    version: int = 0
    epochs: int = 0

    def params_for(self, model: Any) -> NDArray[np.floating]:
        """Where this model starts, whatever its centre."""
        if self.params is None:
            initial: NDArray[np.floating] = model.initial()
            return initial
        if self.centre is model.centre:
            return self.params
        params: NDArray[np.floating] = model.about(model.centre, self.params, self.centre)
        return params

    def state_for(self, optimizer: Optimizer, model: Model) -> NDArray[np.floating] | None:
        """The state, if it is one of this optimizer and model."""
        shape = optimizer.state_rows, model.layout.size
        known = self.state is not None and self.state.shape == shape
        return self.state if known and _kinds(self.optimizer) == _kinds(optimizer) else None

    def after(self, job: Job, model: Any, result: FitResult) -> Start:
        """Where a fit has got to that started here."""
        stepped = not result.history[-1].full_batch  # else the state is as it was made
        return Start(
            params=result.raw_params,
            centre=model.centre,
            state=result.state if stepped else None,
            optimizer=job.optimizer if stepped else None,
            version=result.version,
            epochs=self.epochs + len(result.history),
        )


def _kinds(optimizer: Any) -> tuple[Any, Any]:
    return type(optimizer), type(getattr(optimizer, "base", None))
