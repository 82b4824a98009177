from typing import Any

#: What runs of coordinates are to an update: free, penalised or untrained.
KINDS_OF_RUNS: dict[str, int]

class UpdateKernel:
    """An optimizer by name: sgd, momentum, adagrad, scaled_adagrad or adam."""

    name: str
    lazy: bool
    def __init__(
        self,
        name: str,
        *,
        momentum: float = ...,
        nesterov: bool = ...,
        beta1: float = ...,
        beta2: float = ...,
        epsilon: float = ...,
        lazy: bool = ...,
        decoupled: bool = ...,
    ) -> None: ...
    def averaged(self, start: int, horizon: int = ...) -> UpdateKernel:
        """The same with a running mean of updates after the first `start`, in one more row.

        Of about the last `horizon` updates; 0: of all.
        """
    def update(
        self,
        params: Any,
        grad: Any,
        state: Any,
        *,
        step: int,
        lr: float,
        l1: float = ...,
        l2: float = ...,
    ) -> bool:
        """Apply update `step`, from 1, in place; True if all updated params are finite.

        `params` and `grad` are (n,), `state` is (state_rows, n).
        """
