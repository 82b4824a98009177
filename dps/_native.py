"""Methods in Python and their kernels."""


def written_in_python(cls: type, method: str, kernel: str) -> bool:
    """True if a class inherits a Python method that its kernel does not implement.

    method, kernel: names of attributes that implement the same. Classes are searched in the order
        of inheritance. A class that defines both, or only the kernel, has a valid kernel.
    """
    for ancestor in cls.__mro__:
        if kernel in vars(ancestor):
            return False
        if method in vars(ancestor):
            return True
    return False
