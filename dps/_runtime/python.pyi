from typing import Any

from dps._kernels.rows import Gradient

class PythonGradient(Gradient):
    """The gradient of a model written in Python, which is given `most` rows at a time, or all."""

    def __init__(self, model: Any, most: int) -> None: ...
