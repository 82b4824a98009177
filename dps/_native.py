"""Things that exist twice: in Python, and in a kernel for native loops."""


def written_in_python(cls: type, method: str, kernel: str) -> bool:
    """True if a class has a method that is not the twin of the kernel it has.

    cls: its ancestors, mixins among them, are asked in the order of inheritance.
    method, kernel: attributes that are twins of each other; who writes both, or the kernel, means
        it so.
    """
    for ancestor in cls.__mro__:
        if kernel in vars(ancestor):
            return False
        if method in vars(ancestor):
            return True
    return False
