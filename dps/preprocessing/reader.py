"""Reading of partitions for an encoder's fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dps.data.keep.keeping import give_back_unused
from dps.preprocessing.columns import ReadFrame
from dps.preprocessing.frame_reader import keep_frame, read_frame
from dps.preprocessing.survey import FrameSurvey, SurveyFrame

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FrameReader:
    """Reads partitions of the frame that an encoder is fitted to."""

    names: tuple[Any, ...]  # names of the columns
    look: SurveyFrame  # surveys each partition
    parts: bool = False  # whether dates are read as parts
    ordered: bool = False  # whether lists are read as sequences

    def __call__(self, frame: pd.DataFrame, *_: Any) -> ReadFrame:
        """Read a partition, with codes in place of strings until it can be encoded."""
        read = read_frame(frame, self.names, parts=self.parts)
        return keep_frame(read, hashed=not self.look.values, ordered=self.ordered)

    def reread(self, read: ReadFrame, *_: Any) -> FrameSurvey:
        """Survey a partition that was read before."""
        give_back_unused()  # frees about a third of the size of the CSR
        return self.look(read)

    def survey(self, frame: pd.DataFrame) -> FrameSurvey:
        """Survey a partition."""
        read = read_frame(frame, self.names, parts=self.parts)
        if self.ordered:
            read = keep_frame(read, hashed=False, ordered=True)
        return self.look(read)
