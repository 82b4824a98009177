"""Things that exist twice: in Python, and in a kernel for loops without the interpreter."""

__all__ = ["written_in_python"]


def written_in_python(cls: type, method: str, kernel: str) -> bool | None:
    """Whether a new subclass writes a method that its parent has a kernel for.

    Parameters
    ----------
    cls : type
    method, kernel : str
        Attributes that are twins of each other.

    Returns
    -------
    bool or None
        None where the class defines neither: it is as its parent.
    """
    if kernel in vars(cls):
        return False
    return True if method in vars(cls) else None
