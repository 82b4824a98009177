from typing import Any

class LossKernel:
    """A loss by name, with the width of its middle part where it has one.

    Parameters
    ----------
    name : str
        Of squared, log, hinge, squared_hinge, modified_huber, huber, epsilon_insensitive,
        quantile, poisson, gamma and softmax.
    epsilon : float, default=0.0
    width : float, default=0.0
        Each ``max(z, 0)`` in a loss with a kink is a parabola where ``|z| < width / 2``.
    gap : bool, default=False
        Sum in place of the rounded losses by how much each loss lies above the tangent of the
        rounded one, moved down until it touches the loss. Where the mean of rounded losses and
        a convex penalty are least, the mean of that bounds how far the loss is from its own
        least value: the moved tangents are below it, and are least at the same point.

    Attributes
    ----------
    kinked : bool
        Whether the derivative jumps.
    """

    name: str
    kinked: bool
    def __init__(
        self, name: str, epsilon: float = ..., width: float = ..., gap: bool = ...
    ) -> None: ...
    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        """Return the weighted sum of losses and write derivatives to `out`.

        `y` is (n, k), or (n, 1) with class codes; `raw` and `out` are (n, k).
        """
