from dps._runtime.synchronous import SynchronousEnd

class HybridEnd(SynchronousEnd):
    """A rank's end where rows of a table are updated when they come, all else synchronously."""
