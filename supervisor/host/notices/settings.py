"""What configuration says about notices, as the sources need it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NoticeSettings:
    """`notice_dir`: the folder of notice files. `owner_uids`: whose files count besides root's and our own.

    `azure_acknowledge`: whether Azure may be told to go ahead. `google_preemption_notice_s`: what the machine was made
    with, 0 or 120. `stop_s`: how long the service manager lets us stop, which follows logind's delay. `poll_s`: asks
    everything so often, None: each as its provider advises.
    """

    notice_dir: Path
    owner_uids: frozenset[int] = frozenset()
    azure_acknowledge: bool = False
    google_preemption_notice_s: float = 0.0
    stop_s: float = 0.0
    poll_s: float | None = None
