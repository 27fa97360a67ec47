"""What configuration says about notices, as the sources need it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NoticeSettings:
    """`notice_dir`: the folder of notice files. `owner_uids`: whose files count besides root's and our own.

    `azure_acknowledge`: whether Azure may be told to go ahead. `google_preemption_notice_s`: what the machine was made
    with, 0 or 120.
    """

    notice_dir: Path
    owner_uids: frozenset[int] = frozenset()
    azure_acknowledge: bool = False
    google_preemption_notice_s: float = 0.0
