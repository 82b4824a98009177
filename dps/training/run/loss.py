"""A worker's loss that a fit survived."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    """A loss after which a fit has continued."""

    what: str  # what was lost, and where
    epoch: int  # the epoch at that time, or the next one if data was being loaded
    redone: int  # closed epochs that were repeated because their state was lost
    dropped: int  # rows that are no longer trained on
    # From the report of the loss to the start of the next generation, or until the data was
    # complete again.
    seconds: float
    loading: bool = False  # whether only data was lost
    steps: int = 0  # steps of the epoch that were kept by a snapshot within it

    def line(self) -> str:
        """The loss in words.

        Examples
        --------
        >>> Loss("a worker died (worker tcp://a:1)", 3, 0, 0, 0.25).line()
        'a worker died (worker tcp://a:1); epoch 3 was begun again after 0.25 s'
        """
        if self.loading:
            return f"{self.what}; its data was loaded again within {self.seconds:.3g} s"
        redone = f", with {self.redone} closed before it" if self.redone else ""
        dropped = f", without {self.dropped:,} rows" if self.dropped else ""
        how = f"went on with step {self.steps + 1}" if self.steps else "was begun again"
        return (
            f"{self.what}; epoch {self.epoch - self.redone} {how} after {self.seconds:.3g} s"
            f"{redone}{dropped}"
        )
