"""Things that exist twice: in Python, and in a kernel for loops without the interpreter."""

from typing import Any

__all__ = ["unless_overridden"]


def unless_overridden(cls: type, method: str, native: str, without: Any = None) -> None:
    """Drop an inherited kernel from a subclass that writes the method in Python.

    Parameters
    ----------
    cls : type
        A new subclass.
    method, native : str
        Attributes that are twins of each other.
    without : object, optional
        What `native` is where there is no kernel.
    """
    if method in vars(cls) and native not in vars(cls):
        setattr(cls, native, without)
