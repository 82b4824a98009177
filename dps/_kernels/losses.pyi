from typing import Any

class LossKernel:
    """A loss by name, with the width of its middle part where it has one.

    The names are squared, log, hinge, squared_hinge, modified_huber, huber,
    epsilon_insensitive and softmax.
    """

    name: str
    def __init__(self, name: str, epsilon: float = ...) -> None: ...
    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        """Return the weighted sum of losses and write derivatives to `out`.

        `y` is (n, k), or (n, 1) with class codes; `raw` and `out` are (n, k).
        """
