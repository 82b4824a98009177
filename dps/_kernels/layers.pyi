from typing import Any

ACTIVATIONS: dict[str, int]

class Layers:
    """Dense layers of `shape`, for `block` rows at a time.

    `shape` has sizes (from the inputs to the outputs), weights and biases (where those of each
    layer lie in the parameters), gains, activation, dropout and bias_gain. `widest` elements of a
    row have room in what is passed back.
    """

    def __init__(self, shape: Any, block: int, widest: int, *, single: bool) -> None: ...
