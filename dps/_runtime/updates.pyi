from typing import Any

class BoundUpdate:
    most: int

class NativeUpdate(BoundUpdate): ...
class PythonUpdate(BoundUpdate): ...

def bind(how: Any, dtype: Any, size: int) -> BoundUpdate:
    """Bind an `Update` to vectors of a dtype and size."""
