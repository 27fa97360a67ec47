"""Decides what follows from faults of GPUs: which jobs start again, which GPUs are left out, what the hook is asked.

**How it works.** Findings come from two places: lines of the kernel's log (`on_line`), which come at once and once, and
what NVML says when it is asked (`on_health`), which lasts. The table (`faults.py`) says what follows from each kind.
The same fault of the same GPU again within a minute is one incident, however many lines it has. A fault that the
program itself causes concerns the process that the line names and nobody else; all others concern each job that may use
the GPU, by its CUDA_VISIBLE_DEVICES. A job that is being ended anyway is left alone: killing a process makes the driver
report errors, too.

A GPU that is left out stays so until NVML says that the state has ended, the host was rebooted, or an operator returns
it. The hook is run once for each: when no job uses the GPU any more, as a GPU in use can't be reset.

Points in time are Unix time, as they are compared over weeks and over daemons.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from supervisor.core.gpus import faults, health
from supervisor.core.gpus.decisions import AskOperator, Decision, GiveUp, GpuUse, Incident, Restart, Returned
from supervisor.core.gpus.faults import Fault, Follows, Remedy, describe
from supervisor.core.gpus.health import GpuHealth, HealthTrail
from supervisor.core.gpus.incidents import INCIDENT_S, QUIET_NOTE_S, RECENT_S, Incidents, RecentFault
from supervisor.core.gpus.inventory import GpuInventory
from supervisor.core.gpus.records import MAX_FAULTS, WEEKS_S, GpuRecord, GpuRecords, LeftOut, PastFault, gpu_words
from supervisor.core.gpus.repeats import is_repeated_elsewhere, is_within, what_follows, worse_of
from supervisor.core.gpus.verdict import Gpu
from supervisor.core.gpus.xid import XidLine

SETTLED_S = 10.0  # what NVML says of a GPU was perhaps asked before the line that came first
HOOK_WAIT_S = 180.0  # a job that does not end holds the hook up no longer: longer than a flush may take
MAX_REBOOTS = 2  # the same fault after so many reboots needs somebody who looks at the hardware
LEAVING_OUT = (Follows.LEAVE_OUT, Follows.AT_NEXT_START)


@dataclass(slots=True)
class Guard:
    """All GPUs of the host. `acts`: False to decide and report, but to leave out, restart and ask nothing."""

    records: GpuRecords = field(default_factory=GpuRecords)
    acts: bool = True
    host_fault: str | None = None
    """Why no GPU of the host can be used by a new process."""
    _trail: HealthTrail = field(default_factory=HealthTrail)
    _inventory: GpuInventory = field(default_factory=GpuInventory)
    _incidents: Incidents = field(default_factory=Incidents)
    _lines_at: dict[str, float] = field(default_factory=dict)

    # --- what others ask ---

    def gpus(self, listed: Iterable[GpuHealth] | None = None) -> list[Gpu]:
        """The GPUs that were last listed, as a start looks at them."""
        known = self._inventory.listed if listed is None else self._inventory.with_known_ids(tuple(listed))
        return [health.as_gpu(gpu, self.left_out_because(gpu)) for gpu in known]

    @property
    def listed(self) -> tuple[GpuHealth, ...]:
        """What was last heard of all GPUs that are there."""
        return self._inventory.listed

    @property
    def seen(self) -> frozenset[str]:
        """The ids of all GPUs that NVML listed since the daemon's start."""
        return self._inventory.seen

    def left_out_because(self, gpu: GpuHealth) -> str | None:
        """Why it is left out; None if it is not."""
        for key in filter(None, (gpu.uuid, gpu.address)):
            if (left_out := self.records.left_out(key)) is not None:
                return left_out.text
        return None

    def recent_faults(self, pids: Iterable[int], since: float, program: str | None = None) -> tuple[str, ...]:
        """What was found since then about these processes, or about the GPUs of the program, the worst first."""
        return self._incidents.explain(pids, since, program)

    def is_used_by(self, use: GpuUse, key: str) -> bool:
        """Whether a job may use a GPU that is listed; one that was started after the GPU was left out does not."""
        left_out = self.records.left_out(key)
        if left_out is not None and use.started_wall_at > left_out.since_wall_at:
            return False
        uuids = {gpu.uuid for gpu in self._inventory.devices() if key in (gpu.uuid, gpu.address)}
        return not uuids.isdisjoint(self.gpus_of(use))

    def gpus_of(self, use: GpuUse) -> frozenset[str]:
        """The ids of the GPUs that a job may use."""
        return frozenset(gpu.uuid for gpu in self._inventory.chosen(use.visible))

    # --- what happens ---

    def on_line(
        self, line: XidLine, uses: Sequence[GpuUse], now: float, owner: str | None = None, at: float | None = None
    ) -> list[Decision]:
        """The kernel's log has a line about a GPU. `owner`: the program to which the process that it names belongs;
        `at`: when it was written, if that is not now.
        """
        fault = faults.xid_fault(line)
        key = self._key(line.address)
        self._lines_at[key] = now
        if fault is None:  # the driver asks for nothing any more
            left_out = self.records.left_out(key)
            if left_out is not None and left_out.fault.startswith("recovery-"):
                return self._return(key, "the driver asks for nothing any more")
            return []
        return self._on_fault(fault, key, "", uses, now, now if at is None else at, line.pid, owner)

    def on_health(
        self, listed: Sequence[GpuHealth], uses: Sequence[GpuUse], now: float, is_complete: bool = True
    ) -> list[Decision]:
        """NVML was asked about all GPUs. `is_complete`: one that is not among them is gone."""
        self._inventory.update(listed)
        self.host_fault = None
        decisions: list[Decision] = []
        for gpu in self._inventory.listed:
            if not gpu.uuid:
                continue
            if gpu.address:
                self.records.on_named(gpu.address, gpu.uuid)
            record = self.records.gpus.get(gpu.uuid, GpuRecord(gpu.uuid))
            if (gpu.name and record.name != gpu.name) or record.index != gpu.index:
                self.records.store(gpu.uuid, replace(record, name=gpu.name or record.name, index=gpu.index))
            for fault, detail in self._trail.compare(gpu, now):
                decisions += self._on_fault(fault, gpu.uuid, detail, uses, now, now)
            decisions += self._judge_state(gpu, uses, now)
        if is_complete:
            for uuid in self._inventory.missing:
                decisions += self._on_state(faults.GONE, uuid, uses, now)
            self._trail.forget_all_but({gpu.uuid: None for gpu in self._inventory.listed})
        return decisions

    def on_host_fault(self, fault: Fault, text: str, now: float) -> list[Decision]:
        """No GPU can be used by a new process, whatever each of them says."""
        self.host_fault = f"{fault.meaning} ({text})" if text else fault.meaning
        if not self._incidents.is_new(("", fault.key, "", 0), now, QUIET_NOTE_S):
            return []
        decisions: list[Decision] = [Incident("", "", fault.key, self.host_fault, fault.follows, (), 1, not self.acts)]
        if fault.remedy is not None and self.acts:
            decisions.append(AskOperator("", "", fault.key, self.host_fault, fault.remedy, (), is_in_use=False))
        return decisions

    def on_boot_changed(self, now: float) -> list[Decision]:
        """The host was rebooted since the records were written: GPUs that needed a reset have had it."""
        decisions: list[Decision] = []
        for key, record in list(self.records.gpus.items()):
            left_out = record.left_out
            if left_out is None or left_out.remedy not in (Remedy.RESET, Remedy.REBOOT):
                continue
            times = sum(past.fault == left_out.fault for past in record.faults if is_within(WEEKS_S, past.wall_at, now))
            if times > MAX_REBOOTS:
                text = f"{left_out.text}, {times} times in four weeks"
                self.records.store(key, replace(record, left_out=replace(left_out, text=text, remedy=Remedy.INSPECT)))
            else:
                decisions += self._return(key, "the host was rebooted")
        return decisions

    def give_back(self, key: str) -> list[Decision]:
        """An operator returns a GPU, by its id or address; nothing if it is not left out."""
        record = self.records.gpus.get(key) or self.records.gpus.get(self._key(key))
        if record is None or record.left_out is None:
            return []
        self._inventory.forget(record.uuid)  # if it is gone, it is not missed any more
        return self._return(record.uuid or record.address, "an operator returned it")

    def due_hooks(self, uses: Sequence[GpuUse], now: float) -> list[Decision]:
        """The hooks whose GPU nobody uses any more, or has been used for too long."""
        decisions: list[Decision] = []
        for key, record in list(self.records.gpus.items()):
            left_out = record.left_out
            if left_out is None or left_out.is_asked or left_out.remedy is None:
                continue
            users = [use.program for use in uses if self.is_used_by(use, key)]
            waits_long = left_out.is_urgent and not is_within(HOOK_WAIT_S, left_out.since_wall_at, now)
            if users and not waits_long:
                continue
            self.records.store(key, replace(record, left_out=replace(left_out, is_asked=True)))
            programs = tuple(sorted({*left_out.programs, *users}))
            decisions.append(
                AskOperator(
                    record.uuid,
                    record.address,
                    left_out.fault,
                    left_out.text,
                    left_out.remedy,
                    programs,
                    is_in_use=bool(users),
                )
            )
        return decisions

    @property
    def has_hooks_to_run(self) -> bool:
        """Whether `due_hooks` has to be asked again."""
        lefts = (record.left_out for record in self.records.gpus.values())
        return any(left is not None and not left.is_asked and left.remedy is not None for left in lefts)

    # --- how it decides ---

    def _judge_state(self, gpu: GpuHealth, uses: Sequence[GpuUse], now: float) -> list[Decision]:
        left_out, fault = self.records.left_out(gpu.uuid), health.state_fault(gpu)
        if fault is not None:
            return self._on_state(fault, gpu.uuid, uses, now)
        if left_out is None or not left_out.is_state or 0.0 <= now - self._lines_at.get(gpu.uuid, 0.0) < SETTLED_S:
            return []
        return self._return(gpu.uuid, "it is in order again") if health.is_over(left_out.fault, gpu) else []

    def _on_state(self, fault: Fault, key: str, uses: Sequence[GpuUse], now: float) -> list[Decision]:
        """A state that lasts is one incident for as long as it does."""
        left_out = self.records.left_out(key)
        if left_out is not None and left_out.fault == fault.key:
            return []
        return self._on_fault(fault, key, "", uses, now, now)

    def _on_fault(
        self,
        fault: Fault,
        key: str,
        detail: str,
        uses: Sequence[GpuUse],
        now: float,
        at: float,
        pid: int | None = None,
        owner: str | None = None,
    ) -> list[Decision]:
        record = self.records.gpus.get(key, GpuRecord(key) if key.startswith("GPU-") else GpuRecord("", key))
        affected = self._affected(fault, key, uses, pid, owner)
        if fault.is_programs and affected and all(use.is_ending for use in affected):
            return []  # the end of a process is no fault
        first = affected[0] if affected else None
        text = describe(fault, detail)
        words = f"{gpu_words(self.records.gpus, record.uuid, record.address)}: {text}"
        names = frozenset(use.program for use in affected)
        is_old = now - at > RECENT_S
        if fault.follows is not Follows.NOTE and not is_old:
            pids = frozenset(number for number in (pid, *(use.pid for use in affected)) if number is not None)
            self._incidents.note(RecentFault(now, fault, words, pids, names))
        if not self._is_new_incident(fault, key, first, now):
            return []
        past = PastFault(at, fault.key, None if first is None else first.program, None if first is None else first.step)
        others = None if first is None else self._other_records(first, record)
        follows, remedy = (Follows.NOTE, None) if is_old else what_follows(fault, record, past, others)
        lately = (*(old for old in record.faults if is_within(WEEKS_S, old.wall_at, now)), past)[-MAX_FAULTS:]
        record = replace(record, faults=lately)
        programs = tuple(sorted(names))
        if follows in LEAVING_OUT and self.acts:
            is_urgent = follows is Follows.LEAVE_OUT
            new = LeftOut(fault.key, text, at, remedy, fault.is_state, is_urgent=is_urgent, programs=programs)
            record = replace(record, left_out=worse_of(record.left_out, new))
        self.records.store(key, record)
        count = sum(old.fault == fault.key for old in lately)
        incident = Incident(record.uuid, record.address, fault.key, text, follows, programs, count, not self.acts)
        if not self.acts or follows not in (Follows.RETRY, Follows.LEAVE_OUT):
            return [incident]
        return [incident, *self._end_attempts(fault, key, past, affected, words)]

    def _is_new_incident(self, fault: Fault, key: str, use: GpuUse | None, now: float) -> bool:
        of_program = (use.program, use.attempt) if use is not None and fault.is_programs else ("", 0)
        is_quiet = fault.is_state or (fault.follows is Follows.NOTE and not fault.key.startswith("xid-"))
        return self._incidents.is_new((key, fault.key, *of_program), now, QUIET_NOTE_S if is_quiet else INCIDENT_S)

    def _end_attempts(
        self, fault: Fault, key: str, past: PastFault, affected: Sequence[GpuUse], words: str
    ) -> list[Decision]:
        """Restarts what uses the GPU; gives up a program that has had the same fault at the same step elsewhere."""
        decisions: list[Decision] = [
            Restart(use.program, use.attempt, words, fault.answers) for use in affected if not use.is_ending
        ]
        elsewhere = (other for uuid, other in self.records.gpus.items() if uuid != key)
        if fault.is_programs and affected and is_repeated_elsewhere(elsewhere, past):
            why = f"{words}; the same error at step {past.step} on another GPU: the program is wrong, not the GPU"
            decisions.append(GiveUp(affected[0].program, affected[0].attempt, why))
        return decisions

    def _affected(
        self, fault: Fault, key: str, uses: Sequence[GpuUse], pid: int | None, owner: str | None
    ) -> list[GpuUse]:
        named = [use for use in uses if use.program == owner or (pid is not None and use.pid == pid)]
        on_gpu = [use for use in uses if self.is_used_by(use, key)]
        if not fault.is_programs:
            return [*named, *(use for use in on_gpu if use not in named)]
        if pid is not None:
            return named
        return on_gpu if len(on_gpu) == 1 else []

    def _other_records(self, use: GpuUse, record: GpuRecord) -> list[GpuRecord]:
        uuids = self.gpus_of(use) - {record.uuid}
        return [self.records.gpus.get(uuid, GpuRecord(uuid)) for uuid in uuids]

    def _return(self, key: str, why: str) -> list[Decision]:
        record = self.records.gpus[key]
        self.records.store(key, replace(record, left_out=None))
        self._incidents.forget(key)
        return [Returned(record.uuid or record.address, why)]

    def _key(self, address: str) -> str:
        """The id of the GPU at an address, or the address while that is not known."""
        return self._inventory.id_at(address) or self.records.key_at(address) or address
