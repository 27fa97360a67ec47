"""What is one incident, and which faults are recent enough to explain a death.

Points in time are Unix time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from supervisor.core.gpus.faults import Fault

INCIDENT_S = 60.0  # the driver repeats itself for as long as a program goes on using a broken GPU
QUIET_NOTE_S = 3600.0  # between two notes of the same counter
RECENT_S = 60.0  # a fault that is older explains no death, and nothing is restarted for it
MAX_RECENT = 200

IncidentKey = tuple[str, str, str, int]
"""The GPU, the fault, and the program and its attempt, if the fault is one that programs cause."""


@dataclass(slots=True)
class RecentFault:
    """For whoever asks why a process died. `seen_at`: when it was last reported."""

    seen_at: float
    fault: Fault
    text: str
    pids: frozenset[int]
    programs: frozenset[str]


@dataclass(slots=True)
class Incidents:
    _last_at: dict[IncidentKey, float] = field(default_factory=dict)
    _recent: list[RecentFault] = field(default_factory=list)

    def is_new(self, incident: IncidentKey, now: float, quiet_s: float) -> bool:
        """Whether it is another incident; one lasts for as long as it is reported at least once in `quiet_s`."""
        last_at = self._last_at.get(incident)
        self._last_at[incident] = now
        if len(self._last_at) > MAX_RECENT:
            self._last_at = {key: at for key, at in self._last_at.items() if now - at < QUIET_NOTE_S}
        return last_at is None or not 0.0 <= now - last_at < quiet_s  # of the future: the clock was set back

    def forget(self, gpu: str) -> None:
        """The next fault of this GPU is another incident."""
        self._last_at = {key: at for key, at in self._last_at.items() if key[0] != gpu}

    def note(self, recent: RecentFault) -> None:
        """Keeps a fault for `explain`; the same one again concerns the processes and programs of both."""
        lately = [old for old in self._recent if recent.seen_at - old.seen_at <= RECENT_S]
        for old in lately:
            if old.text == recent.text:
                recent.pids |= old.pids
                recent.programs |= old.programs
        self._recent = [*(old for old in lately if old.text != recent.text), recent][-MAX_RECENT:]

    def explain(self, pids: Iterable[int], since: float, program: str | None) -> tuple[str, ...]:
        """What was found since then about these processes, or about the GPUs of the program, the worst first."""
        wanted = frozenset(pids)
        faults = [
            recent
            for recent in self._recent
            if recent.seen_at >= since and (recent.pids & wanted or program in recent.programs)
        ]
        return tuple(recent.text for recent in sorted(faults, key=lambda recent: not recent.fault.leaves_out))
