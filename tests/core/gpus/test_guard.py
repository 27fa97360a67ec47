"""What follows from faults of GPUs: decisions by time and history, without a process."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.gpus import faults
from supervisor.core.gpus.decisions import AskOperator, Decision, GiveUp, GpuUse, Incident, Restart, Returned
from supervisor.core.gpus.faults import XIDS, Follows, Remedy
from supervisor.core.gpus.guard import HOOK_WAIT_S, Guard
from supervisor.core.gpus.health import GpuHealth
from supervisor.core.gpus.incidents import INCIDENT_S, MAX_RECENT
from supervisor.core.gpus.records import MAX_FAULTS, WEEKS_S, GpuRecord
from supervisor.core.gpus.repeats import DAY_S
from supervisor.core.gpus.xid import XidLine
from tests.fuzzing import QUICK

NOW = 1_800_000_000.0
A, B, C = "GPU-aaaa", "GPU-bbbb", "GPU-cccc"
ADDRESSES = {A: "0000:1a:00.0", B: "0000:1b:00.0", C: "0000:c5:00.0"}
FINE = tuple(
    GpuHealth(
        number, uuid, ADDRESSES[uuid], "H100", recovery=0, ecc_corrected=0, ecc_uncorrected=0, remap_pending=False,
        remap_failed=False, slow_bits=4, nvlink_errors=0,
    )
    for number, uuid in enumerate((A, B, C))
)  # fmt: skip
JOB = GpuUse("digits", 3, step=100, pid=4711, started_wall_at=NOW - 3600.0)


def made(*uses: GpuUse, acts: bool = True) -> Guard:
    """A guard that knows three GPUs in order."""
    guard = Guard(acts=acts)
    assert guard.on_health(FINE, uses, NOW - 60.0) == []
    return guard


def line(number: int, gpu: str = B, pid: int | None = None, **more: Any) -> XidLine:
    return XidLine(number, ADDRESSES[gpu], pid, text=f"NVRM: Xid {number}", **more)


def ill(gpu: str, **state: Any) -> tuple[GpuHealth, ...]:
    return tuple(replace(health, **state) if health.uuid == gpu else health for health in FINE)


def of(kind: type[Any], decisions: list[Decision]) -> list[Any]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def left_out(guard: Guard) -> set[str]:
    return {key for key, record in guard.records.gpus.items() if record.left_out is not None}


# --- the table ---


@pytest.mark.parametrize("number", sorted(XIDS))
def test_each_xid_does_what_its_row_says(number: int) -> None:
    fault, guard = XIDS[number], made(JOB)

    decisions = guard.on_line(line(number, pid=JOB.pid), [JOB], NOW, owner=JOB.program)

    restarts = of(Restart, decisions)
    assert [incident.follows for incident in of(Incident, decisions)] == [fault.follows]
    assert bool(restarts) is (fault.follows in (Follows.RETRY, Follows.LEAVE_OUT))
    assert all(restart.can_save is fault.answers and fault.meaning in restart.text for restart in restarts)
    assert left_out(guard) == ({B} if fault.leaves_out else set())
    assert of(GiveUp, decisions) == []


@pytest.mark.parametrize("action", range(1, 12))
def test_each_recovery_action_leaves_the_gpu_out_from_the_log_and_from_nvml(action: int) -> None:
    heard, asked = made(JOB), made(JOB)

    heard.on_line(line(154, recovery=action), [JOB], NOW)
    asked.on_health(ill(B, recovery=action), [JOB], NOW)

    assert left_out(heard) == left_out(asked) == {B}
    assert heard.records.gpus[B].left_out == asked.records.gpus[B].left_out


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ({"error": 15}, Remedy.REBOOT),
        ({"error": 16}, Remedy.RESET),
        ({"remap_failed": True}, Remedy.REPLACE),
        ({"recovery": 2, "error": 15}, Remedy.REBOOT),
    ],
)
def test_a_state_of_the_driver_leaves_the_gpu_out_until_it_is_over(state: dict[str, Any], remedy: Remedy) -> None:
    guard = made(JOB)

    decisions = guard.on_health(ill(B, **state), [JOB], NOW)

    assert [restart.program for restart in of(Restart, decisions)] == ["digits"]
    exclusion = guard.records.gpus[B].left_out
    assert exclusion is not None and exclusion.remedy is remedy
    assert guard.on_health(ill(B, **state), [], NOW + 15.0) == [], "one incident for as long as it lasts"
    assert of(Returned, guard.on_health(FINE, [], NOW + 30.0)) == [Returned(B, "it is in order again")]
    assert guard.on_health(ill(B, **state), [], NOW + 45.0) != [], "and again, if it comes back"


@pytest.mark.parametrize("error", [3, 4, 9, 10, 999])
def test_errors_that_say_nothing_of_the_gpu_are_no_verdict(error: int) -> None:
    guard = made(JOB)

    assert guard.on_health(ill(B, error=error), [JOB], NOW) == []


def test_a_gpu_that_is_not_listed_any_more_is_gone_and_may_come_back() -> None:
    guard = made(JOB)

    decisions = guard.on_health(FINE[:1], [JOB], NOW)

    assert left_out(guard) == {B, C} and len(of(Restart, decisions)) == 2
    assert {returned.gpu for returned in of(Returned, guard.on_health(FINE, [], NOW + 60.0))} == {B, C}


def test_a_lost_gpu_that_can_not_even_be_named_is_the_one_with_its_number() -> None:
    guard = made(JOB)

    guard.on_health((FINE[0], GpuHealth(1, error=15, error_text="GPU is lost"), FINE[2]), [JOB], NOW)

    assert left_out(guard) == {B}
    assert [gpu.trouble for gpu in guard.gpus()] == [None, "GPU is lost", None]


def test_a_driver_of_another_version_than_its_library_is_the_hosts_fault_once() -> None:
    guard = made(JOB)

    first = guard.on_host_fault(faults.VERSION_MISMATCH, "570.1", NOW)
    again = guard.on_host_fault(faults.VERSION_MISMATCH, "570.1", NOW + 15.0)

    assert [asked.remedy for asked in of(AskOperator, first)] == [Remedy.REBOOT]
    assert of(Restart, first) == again == [] and "upgraded" in (guard.host_fault or "")
    guard.on_health(FINE, [JOB], NOW + 60.0)
    assert guard.host_fault is None


# --- whom it concerns ---


def test_only_jobs_that_may_use_the_gpu_start_again() -> None:
    on_a, on_b = replace(JOB, program="a", visible="0"), replace(JOB, program="b", visible=B)
    guard = made(on_a, on_b)

    decisions = guard.on_line(line(79), [on_a, on_b], NOW)

    assert [restart.program for restart in of(Restart, decisions)] == ["b"]


def test_a_fault_of_another_program_concerns_nobody_here() -> None:
    guard = made(JOB)

    decisions = guard.on_line(line(31, pid=99), [JOB], NOW, owner=None)

    assert of(Restart, decisions) == [] and guard.recent_faults([4711], NOW - 60.0, "digits") == ()


@pytest.mark.parametrize("number", [13, 31, 32, 43, 45])
def test_what_the_end_of_a_process_causes_is_no_fault(number: int) -> None:
    dying = replace(JOB, is_ending=True)
    guard = made(dying)

    decisions = guard.on_line(line(number, pid=JOB.pid), [dying], NOW, owner="digits")

    assert of(Restart, decisions) == [] and left_out(guard) == set()
    assert guard.recent_faults([4711], NOW - 60.0, "digits") == ()


def test_a_broken_gpu_is_left_out_also_while_its_job_is_stopped() -> None:
    dying = replace(JOB, is_ending=True)
    guard = made(dying)

    assert of(Restart, guard.on_line(line(79), [dying], NOW)) == []
    assert left_out(guard) == {B}


def test_a_fault_is_the_reason_of_a_death_for_a_minute() -> None:
    guard = made(JOB)
    guard.on_line(line(94, pid=4711), [JOB], NOW, owner="digits")
    guard.on_line(line(45, pid=4711), [JOB], NOW, owner="digits")

    assert guard.recent_faults([4711], NOW - 1.0) == (
        "GPU 1 (GPU-bbbb): Xid 94: a memory error that was contained; reset the GPU when it is idle",
    )
    assert guard.recent_faults([1], NOW - 1.0, "digits") != ()
    assert guard.recent_faults([1], NOW - 1.0, "other") == ()
    assert guard.recent_faults([4711], NOW + 1.0) == ()


def test_old_lines_are_counted_and_nothing_is_done_about_them() -> None:
    guard = made(JOB)

    decisions = guard.on_line(line(79), [JOB], NOW, at=NOW - 3600.0)

    assert [incident.follows for incident in decisions if isinstance(incident, Incident)] == [Follows.NOTE]
    assert of(Restart, decisions) == [] and left_out(guard) == set() and guard.recent_faults([4711], NOW - 60.0) == ()


# --- again and again ---


def test_a_storm_is_one_incident() -> None:
    guard = made(JOB)

    decisions = [guard.on_line(line(95), [JOB], NOW + number / 100.0) for number in range(5_000 if QUICK else 50_000)]

    assert len([decision for decision in decisions if decision]) == 1
    assert [past.fault for past in guard.records.gpus[B].faults] == ["xid-95"]


def test_a_fault_after_the_clock_was_set_back_is_another_incident() -> None:
    """As at a boot with a wrong clock: else nothing would follow from a broken GPU until the clock is there again."""
    number = next(number for number, fault in XIDS.items() if fault.leaves_out)
    guard = made(JOB)
    guard.on_line(line(number), [JOB], NOW)
    guard.give_back(B)
    guard.on_line(line(number), [JOB], NOW)

    decisions = guard.on_line(line(number), [JOB], NOW - 7200.0)

    assert of(Incident, decisions) and of(Restart, decisions)


def test_the_next_attempt_that_hits_the_same_fault_at_once_starts_again_too() -> None:
    guard, after = made(JOB), replace(JOB, attempt=4, pid=4712, started_wall_at=NOW + 2.0)
    guard.on_line(line(31, pid=4711), [JOB], NOW, owner="digits")

    decisions = guard.on_line(line(31, pid=4712), [after], NOW + 5.0, owner="digits")

    assert [restart.attempt for restart in of(Restart, decisions)] == [4]


def test_the_same_error_at_the_same_step_on_another_gpu_is_the_programs() -> None:
    guard, after = made(JOB), replace(JOB, attempt=4)
    guard.on_line(line(31, B, pid=4711), [JOB], NOW, owner="digits")

    decisions = guard.on_line(line(31, C, pid=4711), [after], NOW + 300.0, owner="digits")

    (given_up,) = of(GiveUp, decisions)
    assert given_up.program == "digits" and "the program is wrong, not the GPU" in given_up.text
    assert left_out(guard) == set()


@pytest.mark.parametrize("change", [{"step": 150}, {"program": "other"}])
def test_another_step_or_another_program_proves_nothing(change: dict[str, Any]) -> None:
    guard, after = made(JOB), replace(JOB, attempt=4, **change)
    guard.on_line(line(31, B, pid=4711), [JOB], NOW, owner="digits")

    assert of(GiveUp, guard.on_line(line(31, C, pid=4711), [after], NOW + 300.0, owner=after.program)) == []


@pytest.mark.parametrize(("visible", "is_left_out"), [(None, True), (B, False)])
def test_one_gpu_of_several_that_fails_at_every_step_is_left_out(visible: str | None, is_left_out: bool) -> None:
    guard = made(JOB)
    for number in range(3):
        use = replace(JOB, attempt=number, step=100 * number, visible=visible)
        guard.on_line(line(13, pid=4711), [use], NOW + 600.0 * number, owner="digits")

    assert left_out(guard) == ({B} if is_left_out else set()), "a job's only GPU is never left out for that"


@pytest.mark.parametrize(("number", "retries"), [(109, 1), (94, 3), (48, 3)])
def test_what_is_retried_some_times_a_day_is_left_out_then(number: int, retries: int) -> None:
    guard = made(JOB)

    seen = []
    for time in range(retries + 1):
        guard.on_line(line(number), [replace(JOB, attempt=time)], NOW + 3600.0 * time)
        seen.append(left_out(guard))

    assert seen == [set()] * retries + [{B}]


def test_retries_of_yesterday_do_not_count() -> None:
    guard = made(JOB)
    for day in range(20):
        guard.on_line(line(109), [JOB], NOW + day * (DAY_S + 1.0))

    assert left_out(guard) == set()
    assert len(guard.records.gpus[B].faults) == 20


def test_faults_are_counted_for_four_weeks() -> None:
    guard = made(JOB)
    for day in range(60):
        guard.on_line(line(63), [JOB], NOW + day * DAY_S)

    kept = [past.wall_at for past in guard.records.gpus[B].faults]
    assert kept[-1] - kept[0] <= WEEKS_S and len(kept) == 28


# --- the operator ---


def test_the_hook_comes_once_when_the_gpu_is_free() -> None:
    guard, after = made(JOB), replace(JOB, attempt=4, started_wall_at=NOW + 3.0, visible=f"{A},{C}")
    guard.on_line(line(95), [JOB], NOW)

    assert guard.due_hooks([JOB], NOW + 1.0) == [] and guard.has_hooks_to_run
    (asked,) = guard.due_hooks([after], NOW + 4.0)

    assert isinstance(asked, AskOperator)
    assert (asked.gpu, asked.address, asked.fault, asked.remedy) == (B, ADDRESSES[B], "xid-95", Remedy.RESET)
    assert asked.programs == ("digits",) and not asked.is_in_use
    assert guard.due_hooks([after], NOW + 5.0) == [] and not guard.has_hooks_to_run


def test_a_job_that_does_not_end_holds_the_hook_up_for_a_while() -> None:
    guard = made(JOB)
    guard.on_line(line(95), [JOB], NOW)

    (asked,) = guard.due_hooks([JOB], NOW + HOOK_WAIT_S)

    assert isinstance(asked, AskOperator) and asked.is_in_use


def test_running_work_that_is_safe_holds_it_up_for_as_long_as_it_runs() -> None:
    guard = made(JOB)
    guard.on_line(line(154, recovery=4), [JOB], NOW)

    assert guard.due_hooks([JOB], NOW + DAY_S) == []
    assert guard.due_hooks([], NOW + DAY_S) != []


YEAR_S = 365 * DAY_S


def test_faults_while_the_clock_was_ahead_are_none_of_this_day() -> None:
    guard = made(JOB)
    for number in range(3):
        guard.on_line(line(48), [JOB], NOW + YEAR_S + number * 2 * INCIDENT_S)

    decisions = guard.on_line(line(48), [JOB], NOW)

    assert [incident.follows for incident in of(Incident, decisions)] == [Follows.RETRY]
    assert [incident.count for incident in of(Incident, decisions)] == [1]


def test_the_hook_of_a_gpu_that_was_left_out_while_the_clock_was_ahead_waits_for_no_such_day() -> None:
    guard = made(JOB)
    guard.on_line(line(79), [JOB], NOW + YEAR_S)

    (asked,) = guard.due_hooks([JOB], NOW)

    assert asked.is_in_use


def test_what_follows_of_a_fault_asks_again_only_for_more() -> None:
    guard = made(JOB)
    guard.on_line(line(95), [JOB], NOW)
    asked = guard.due_hooks([], NOW + 1.0)
    guard.on_health(ill(B, recovery=1), [], NOW + 2.0)
    same = guard.due_hooks([], NOW + 3.0)
    guard.on_health(ill(B, recovery=2), [], NOW + 20.0)
    more = guard.due_hooks([], NOW + 21.0)

    assert [decision.remedy for decision in (*asked, *same, *more)] == [Remedy.RESET, Remedy.REBOOT]
    text = guard.records.gpus[B].left_out.text
    assert text.startswith("Xid 95: ") and "reboot" in text


def test_what_the_log_left_out_comes_back_once_the_driver_says_that_it_was_reset() -> None:
    guard = made(JOB)
    guard.on_line(line(95), [JOB], NOW)
    assert of(Returned, guard.on_health(FINE, [], NOW + 60.0)) == [], "nothing says that it was reset"

    guard.on_line(line(154, recovery=1), [], NOW + 61.0)
    early = guard.on_health(FINE, [], NOW + 62.0)
    guard.on_health(ill(B, recovery=1), [], NOW + 75.0)

    assert of(Returned, early) == [], "it may have been asked before"
    assert of(Returned, guard.on_health(FINE, [], NOW + 90.0)) == [Returned(B, "it is in order again")]


def test_an_operator_returns_a_gpu_and_the_next_fault_leaves_it_out_again() -> None:
    guard = made(JOB)
    guard.on_line(line(79), [JOB], NOW)

    assert guard.give_back(B) == [Returned(B, "an operator returned it")]
    assert guard.give_back(B) == guard.give_back("GPU-none") == [] and left_out(guard) == set()
    guard.on_line(line(79), [JOB], NOW + 5.0)
    assert left_out(guard) == {B}


def test_a_reboot_returns_what_needed_a_reset_but_not_for_ever() -> None:
    guard, returns = made(JOB), []
    for day in range(4):
        guard.on_line(line(79), [replace(JOB, attempt=day)], NOW + day * DAY_S)
        returns.append(bool(of(Returned, guard.on_boot_changed(NOW + day * DAY_S + 60.0))))

    assert returns == [True, True, False, False]
    exclusion = guard.records.gpus[B].left_out
    assert exclusion is not None and exclusion.remedy is Remedy.INSPECT


def test_a_reboot_does_not_repair_memory() -> None:
    guard = made(JOB)
    guard.on_health(ill(B, remap_failed=True), [], NOW)

    assert guard.on_boot_changed(NOW + 60.0) == [] and left_out(guard) == {B}


@pytest.mark.parametrize("number", [31, 79, 94, 154])
def test_a_dry_run_reports_and_does_nothing(number: int) -> None:
    guard = made(JOB, acts=False)

    decisions = guard.on_line(line(number, pid=4711, recovery=2), [JOB], NOW, owner="digits")

    assert [type(decision) for decision in decisions] == [Incident] and decisions[0].is_dry_run
    assert left_out(guard) == set() and guard.due_hooks([], NOW + DAY_S) == []
    assert len(guard.records.gpus[B].faults) == 1


# --- before NVML, or without it ---


def test_a_gpu_is_known_by_its_address_until_its_id_is() -> None:
    guard = Guard()
    guard.on_line(line(79), [], NOW)
    before = left_out(guard)

    guard.records.on_named(ADDRESSES[B], B)

    assert (before, left_out(guard)) == ({ADDRESSES[B]}, {B})
    assert [gpu.trouble is None for gpu in guard.gpus(FINE)] == [True, False, True]


def test_without_nvml_the_kernels_list_is_enough_to_leave_a_gpu_out() -> None:
    guard = Guard()
    guard.on_health(tuple(GpuHealth(gpu.index, gpu.uuid, gpu.address) for gpu in FINE), [JOB], NOW, is_complete=False)

    decisions = guard.on_line(line(79), [JOB], NOW + 1.0)

    assert len(of(Restart, decisions)) == 1
    assert [gpu.uuid for gpu in guard.gpus() if gpu.trouble is None] == [A, C]


# --- noise ---


@pytest.mark.thorough
def test_a_day_of_noise_on_healthy_gpus_does_nothing() -> None:
    """Corrected errors, 45s of kills, idle clocks and the power cap, memory that others hold: all of it each 15 s."""
    guard, seen = made(JOB), list[Decision]()
    for look in range(4 * 60 * 24):
        now, use = NOW + 15.0 * look, replace(JOB, step=look)
        clocks = (1, 4, 5, 2, 0x10, 8 if look % 40 == 0 else 4)[look % 6]
        noisy = tuple(replace(gpu, ecc_corrected=look // 20, slow_bits=clocks, pids=(1, 2)) for gpu in FINE)
        seen += guard.on_health(noisy, [use], now)
        if look % 40 == 0:
            for _ in range(20):
                seen += guard.on_line(line(45, pid=look), [use], now, owner=None)
                seen += guard.on_line(line(43, pid=4711), [use], now, owner="digits")
        if look % 240 == 0:
            seen += guard.on_line(line(13, pid=99), [use], now)
            seen += guard.on_line(line(63), [use], now)
            seen += guard.on_line(line(500), [use], now)
            seen += guard.on_line(line(145, is_fatal=False), [use], now)
        seen += guard.due_hooks([use], now)

    assert {type(decision) for decision in seen} == {Incident}
    assert {decision.follows for decision in of(Incident, seen) if decision.programs} <= {Follows.NOTE}
    assert left_out(guard) == set() and not guard.has_hooks_to_run
    assert all(len(record.faults) <= MAX_FAULTS for record in guard.records.gpus.values())


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ({}, {"ecc_uncorrected": 1}, "ecc-uncorrected"),
        ({}, {"ecc_corrected": 5000}, "ecc-corrected"),
        ({}, {"remap_pending": True}, "remap-pending"),
        ({}, {"nvlink_errors": 3}, "nvlink-errors"),
        ({"ecc_uncorrected": 7}, {"ecc_uncorrected": 2}, "ecc-uncorrected"),
    ],
)
def test_counters_that_grow_are_noted(before: dict[str, Any], after: dict[str, Any], key: str) -> None:
    guard = Guard()
    guard.on_health(ill(B, **before), [], NOW)

    decisions = guard.on_health(ill(B, **after), [JOB], NOW + 15.0)

    assert [(incident.fault, incident.follows) for incident in of(Incident, decisions)] == [(key, Follows.NOTE)]
    assert guard.on_health(ill(B, **after), [JOB], NOW + 30.0) == []


def test_low_clocks_are_noted_if_they_stay() -> None:
    guard = made(JOB)
    looks = [guard.on_health(ill(B, slow_bits=0x48), [JOB], NOW + 15.0 * look) for look in range(10)]

    assert [bool(look) for look in looks] == [False, False, True] + [False] * 7


# --- anything at all ---

LINES = st.builds(
    XidLine,
    st.sampled_from([*XIDS, 144, 145, 154, 51, 9999]),
    st.sampled_from([*ADDRESSES.values(), "0000:ff:00.0"]),
    st.sampled_from([None, 4711, 4712, 99]),
    st.sampled_from([None, 0, 1, 2, 3, 4, 9]),
    st.sampled_from([None, True, False]),
)
HEALTHS = st.builds(
    GpuHealth,
    st.integers(0, 3),
    st.sampled_from(["", A, B, C]),
    st.sampled_from(["", *ADDRESSES.values()]),
    error=st.sampled_from([0, 0, 0, 3, 15, 16, 999]),
    recovery=st.sampled_from([None, 0, 0, 1, 2, 4, 9]),
    ecc_corrected=st.sampled_from([None, 0, 10_000]),
    ecc_uncorrected=st.sampled_from([None, 0, 3]),
    remap_failed=st.sampled_from([None, False, True]),
    slow_bits=st.sampled_from([None, 4, 0xE8]),
)
USES = st.lists(
    st.builds(
        GpuUse,
        st.sampled_from(["a", "b"]),
        st.integers(1, 3),
        st.none() | st.integers(0, 3),
        st.sampled_from([None, 4711, 4712]),
        st.sampled_from([None, "0", B, "1,2", "MIG-1", ""]),
        st.sampled_from([NOW - 10.0, NOW + 500.0]),
        st.booleans(),
    ),
    max_size=3,
)
STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 7200.0), LINES | st.lists(HEALTHS, max_size=4) | st.sampled_from(["boot", "return"]), USES
    ),
    max_size=25,
)


@settings(deadline=None)
@given(STEPS, st.booleans())
def test_whatever_happens_decisions_hold_together(steps: list[Any], acts: bool) -> None:
    guard, now = Guard(acts=acts), NOW
    for passed, what, uses in steps:
        now += passed
        match what:
            case XidLine():
                decisions = guard.on_line(what, uses, now, owner="a" if what.pid == 4711 else None)
            case "boot":
                decisions = guard.on_boot_changed(now)
            case "return":
                decisions = guard.give_back(B)
            case _:
                decisions = guard.on_health(what, uses, now)
        decisions += guard.due_hooks(uses, now)
        if not acts:
            assert {type(decision) for decision in decisions} <= {Incident}
        ending = {(use.program, use.attempt) for use in uses if not use.is_ending}
        assert all((restart.program, restart.attempt) in ending for restart in of(Restart, decisions))
        assert all(len(record.faults) <= MAX_FAULTS for record in guard.records.gpus.values())
        assert all(isinstance(record, GpuRecord) for record in guard.records.gpus.values())


def test_incidents_are_forgotten_in_time() -> None:
    guard = made(JOB)
    for pid in range(2000):
        guard.on_line(line(31, pid=4711), [replace(JOB, attempt=pid)], NOW + pid * INCIDENT_S, owner="digits")

    assert len(guard._incidents._last_at) <= MAX_RECENT + 100
