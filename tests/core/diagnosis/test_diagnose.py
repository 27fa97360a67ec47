"""Each rule names its kind of death, in its order; what a stranger printed can neither slow it down nor break it."""

import time
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.core.diagnosis.diagnose import CHILD_S, NEAR_S, diagnose
from supervisor.core.diagnosis.evidence import DeathKind, Disk, Evidence, KernelLine, Source, Who
from supervisor.core.diagnosis.kinds import MEANINGS
from supervisor.core.diagnosis.output import MAX_CHARACTERS, MAX_SHOWN, read_output
from supervisor.core.diagnosis.rules import EXCEPTIONS, SIGNALS, TEXT_RULES, XIDS
from supervisor.core.failures.restart import Cause
from tests.core.diagnosis.corpus_files import LabelledDeath, corpus

CORPUS = corpus()
PIECES = [(rule.kind, piece) for rule in TEXT_RULES for piece in rule.pieces]
KILLED = Evidence(signal=9, pids=(4711,))
FIVE_MS = 0.005


def raised(line: str, *, before: str = "", after: str = "") -> Evidence:
    """A Python program that ended with this exception."""
    return Evidence(
        code=1, stderr=f"{before}Traceback (most recent call last):\n  File 't.py', line 1\n{line}\n{after}"
    )


def logged(text: str, age_s: float = 0.2) -> tuple[KernelLine, ...]:
    return (KernelLine(age_s, text),)


@pytest.mark.parametrize("death", CORPUS, ids=lambda death: death.name)
def test_each_death_of_the_corpus_is_named_rightly(death: LabelledDeath):
    assert diagnose(death.evidence).kind is death.kind


def test_the_corpus_is_large_enough_to_claim_anything():
    assert len(CORPUS) >= 150
    assert 3 * sum(death.is_first for death in CORPUS) >= len(CORPUS)


@pytest.mark.parametrize(("kind", "piece"), PIECES, ids=[f"{kind}: {piece}" for kind, piece in PIECES])
def test_each_piece_of_a_rule_is_enough_and_no_earlier_rule_takes_it(kind: DeathKind, piece: str):
    diagnosis = diagnose(raised(f"RuntimeError: {piece.replace('…', ' 7 ')}"))

    assert (diagnosis.kind, diagnosis.source) == (kind, Source.STDERR)
    assert piece.partition("…")[0].strip() in diagnosis.line


@pytest.mark.parametrize(("name", "kind"), EXCEPTIONS.items())
def test_a_class_of_exception_is_enough_where_its_text_says_nothing(name: str, kind: DeathKind):
    assert diagnose(raised(f"some.module.{name}: it")).kind is kind


@pytest.mark.parametrize(("number", "kind"), SIGNALS.items())
def test_a_signal_is_enough_where_nothing_else_is_known(number: int, kind: DeathKind):
    diagnosis = diagnose(Evidence(signal=number))

    assert (diagnosis.kind, diagnosis.source) == (kind, Source.STATUS)


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, number) for kind, numbers in XIDS.items() for number in sorted(numbers)]
)
def test_an_xid_of_its_process_says_more_than_cudas_error(kind: DeathKind, number: int):
    text = f"NVRM: Xid (PCI:0000:c5:00): {number}, pid=4711, name=python, Ch 8"
    said = raised("RuntimeError: CUDA error: an illegal memory access was encountered")

    diagnosis = diagnose(replace(said, kernel=logged(text), pids=(4711,)))

    assert (diagnosis.kind, diagnosis.source, diagnosis.line) == (kind, Source.KERNEL, text)


# --- the order of trust ---


def test_the_kernel_is_believed_before_the_program():
    line = "Out of memory: Killed process 4711 (python) total-vm:9kB"

    assert diagnose(replace(KILLED, kernel=logged(line), stderr="disk full: No space left on device")).line == line


@pytest.mark.parametrize(
    "line",
    [
        "Out of memory: Killed process 47110 (python) total-vm:9kB",
        "java[815]: segfault at 4711 ip 0 sp 0 error 4",
        "NVRM: Xid (PCI:0000:c5:00): 79, pid=815, name=other, GPU has fallen off the bus.",
        "Memory cgroup out of memory: Killed process 815 (python) anon-rss:4711kB",
    ],
)
def test_a_line_about_another_process_explains_nothing(line: str):
    assert diagnose(replace(KILLED, kernel=logged(line), cgroup="/own")).kind is DeathKind.KILLED


CRASH = "[815]: segfault at 0 ip 00007f3a sp 00007ffd error 14 in "
OWN_OOM = "constraint=CONSTRAINT_MEMCG,task_memcg=/own,task=python,pid=4711,uid=0"


@pytest.mark.hostile
@pytest.mark.parametrize(
    "line",
    [
        f"x{CRASH}Out of memory: Killed process 4711 (python) total-vm:9kB[400000+1000]",
        f"x{CRASH}oom-kill:{OWN_OOM}",
        f"Out of memory: {CRASH}Killed process 4711 (python)[400000+1000]",  # 15 characters
        f"a[4711]: x{CRASH}libc.so.6[400000+1000]",
        f"oom-kill:constraint=CONSTRAINT_MEMCG,cpuset=/,{OWN_OOM},task_memcg=/user/a,task=x,pid=815,uid=9",
        f"oom-kill:constraint=CONSTRAINT_MEMCG,cpuset=/,task_memcg=/user/{OWN_OOM},task=x,pid=815,uid=9",
        "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user/a,task=x,pid=4711,uid=,pid=815,uid=9",
        f"oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/{'x' * 1000},task=x,pid=4711,uid=0",  # cut
        "INFO: task x:4711 blocked:815 blocked for more than 122 seconds.",
        f"I/O error{CRASH}a library[400000+1000]",
    ],
)
def test_what_another_user_calls_a_process_a_file_or_a_group_explains_nothing(line: str):
    killed = replace(KILLED, kernel=logged(line), cgroup="/own")
    other = replace(raised("OSError: [Errno 5] Input/output error"), kernel=logged(line), pids=(4711,), cgroup="/own")

    assert diagnose(killed).kind is DeathKind.KILLED
    assert diagnose(other).source is Source.STDERR


def test_a_broken_disk_does_not_explain_a_wrong_key():
    lines = logged("I/O error, dev sda, sector 7")

    assert diagnose(replace(raised("KeyError: 'x'"), kernel=lines)).kind is DeathKind.EXCEPTION
    assert diagnose(replace(raised("OSError: [Errno 5] Input/output error"), kernel=lines)).source is Source.KERNEL


def test_what_the_kernel_said_of_the_host_long_ago_explains_nothing():
    said = raised("OSError: [Errno 5] Input/output error")
    old = replace(said, kernel=logged("I/O error, dev sda, sector 7", NEAR_S + 1))

    assert diagnose(old).source is Source.STDERR


@pytest.mark.parametrize(("age_s", "kind"), [(1.0, DeathKind.CGROUP_MEMORY), (CHILD_S + 1, DeathKind.CHILD)])
def test_a_child_killed_for_memory_explains_its_parent_for_a_while(age_s: float, kind: DeathKind):
    said = raised("BrokenProcessPool: A process in the process pool was terminated abruptly")
    text = "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/own/a1,task=python,pid=99,uid=0"

    diagnosis = diagnose(replace(said, kernel=logged(text, age_s), cgroup="/own"))

    assert diagnosis.kind is kind


def test_a_child_killed_for_memory_does_not_explain_a_wrong_value():
    text = "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/own,task=python,pid=99,uid=0"

    assert diagnose(replace(raised("ValueError: x"), kernel=logged(text), cgroup="/own")).kind is DeathKind.EXCEPTION


def test_what_the_gpu_guard_found_is_believed_before_the_program_if_that_speaks_of_gpus():
    faults = ("GPU 3 reports uncorrectable ECC errors",)

    guarded = diagnose(replace(raised("RuntimeError: CUDA error: unknown error"), gpu=faults))
    other = diagnose(replace(raised("KeyError: 'x'"), gpu=faults))

    assert (guarded.kind, guarded.source, guarded.line) == (DeathKind.GPU_FAULT, Source.GPU, faults[0])
    assert other.kind is DeathKind.EXCEPTION


@pytest.mark.parametrize("number", [9, 15, 1])
def test_a_message_that_was_survived_does_not_explain_a_signal_from_outside(number: int):
    text = "CUDA out of memory\nNo space left on device\n"

    assert diagnose(Evidence(signal=number, stderr=text)).source is Source.STATUS


def test_what_this_daemon_ended_is_its_own_decision():
    diagnosis = diagnose(Evidence(signal=6, decided="no step for 60 s", stderr="Fatal Python error: Aborted\n"))

    assert (diagnosis.kind, diagnosis.line, diagnosis.who) == (DeathKind.BY_DAEMON, "no step for 60 s", Who.NOBODY)


def test_the_kernel_says_why_a_worker_hung():
    text = "INFO: task python:4711 blocked for more than 122 seconds."

    assert (
        diagnose(Evidence(signal=9, decided="no step", kernel=logged(text), pids=(4711,))).kind is DeathKind.HUNG_TASK
    )


@pytest.mark.parametrize(
    ("disk", "kind"),
    [
        (Disk("temporary files", "/tmp", 10**9, 0), DeathKind.INODES),
        (Disk("shared memory", "/dev/shm", 0, 100), DeathKind.SHARED_MEMORY),
        (Disk("the log", "/var", 0, 100), DeathKind.DISK_FULL),
        (Disk("the log", "/var", 10**9, 100), DeathKind.DISK_FULL),
    ],
)
def test_the_state_of_the_disks_tells_what_is_full(disk: Disk, kind: DeathKind):
    said = raised("OSError: [Errno 28] No space left on device")

    assert diagnose(replace(said, disks=(disk,))).kind is kind


def test_what_it_reported_comes_before_what_it_printed():
    evidence = replace(raised("ValueError: printed"), reported="KeyError: 'reported'")

    assert (diagnose(evidence).line, diagnose(evidence).source) == ("KeyError: 'reported'", Source.REPORT)


# --- the line ---


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ValueError: bad", "ValueError: bad"),
        ("ValueError: bad\n  in detail", "ValueError: bad"),
        ("ValueError: these differ:\n  a\n  b", "ValueError: these differ: a"),
        (
            "errors.UnknownError: Graph execution error:\n\nDetected at node\nNode: 'x'\nit broke\n\t [[{{node x}}]]",
            "errors.UnknownError: Graph execution error: it broke",
        ),
        (
            "errors.InternalError: 2 root error(s) found.\n  (0) first\n  (1) second",
            "errors.InternalError: 2 root error(s) found. (0) first",
        ),
    ],
)
def test_the_line_is_the_part_of_the_message_that_says_most(text: str, line: str):
    assert diagnose(raised(text)).line == line


def test_an_exception_that_was_ignored_after_the_end_is_not_the_cause():
    after = (
        "Exception ignored in: <function C.__del__>\nTraceback (most recent call last):\n  File 'x'\nOSError: later\n"
    )

    assert diagnose(raised("ValueError: first", after=after)).line == "ValueError: first"


def test_an_exception_that_was_logged_before_is_not_the_cause():
    handled = "ERROR:root:handled\nTraceback (most recent call last):\n  File 'x'\nOSError: [Errno 28] full\n"

    assert diagnose(raised("ValueError: real", before=handled)).kind is DeathKind.EXCEPTION


def test_a_progress_bar_is_no_part_of_the_line():
    bar = "".join(f"\r{step}/30 [====>   ]" for step in range(30))

    assert diagnose(Evidence(code=3, stderr=f"{bar}\rno data\n")).line == "no data"


# --- what follows from it ---


@pytest.mark.parametrize("kind", DeathKind)
def test_each_kind_has_words_and_none_that_may_pass_is_final(kind: DeathKind):
    meaning = MEANINGS[kind]

    assert meaning.cause in (None, Cause.OUT_OF_MEMORY)
    assert meaning.advice or meaning.who is Who.NOBODY
    assert "stop" not in meaning.advice.split() or not meaning.is_transient


# --- text of a stranger's ---

HOSTILE = {
    "lines": "\n" * MAX_CHARACTERS,
    "returns": "\r" * MAX_CHARACTERS,
    "escapes": "\x1b[" * (MAX_CHARACTERS // 2),
    "digits in an escape": "\x1b[" + "0;" * (MAX_CHARACTERS // 2),
    "headers": "Traceback (most recent call last):\n" * 2000,
    "headers with frames": "Traceback (most recent call last):\n  x\nValueError: x\n" * 1300,
    "links": "The above exception was the direct cause\nTraceback (most recent call last):\n x\nE: y\n" * 800,
    "one long line": "a" * MAX_CHARACTERS,
    "colons": "a:" * (MAX_CHARACTERS // 2),
    "dots": "a." * (MAX_CHARACTERS // 2),
    "group frames": "  | " * (MAX_CHARACTERS // 4),
    "group lines": ("  | " * 30 + "\n") * 500,
    "pids": "pid 1 " * (MAX_CHARACTERS // 6),
    "all pieces": " ".join(piece.partition("…")[0] for _, piece in PIECES) * 10,
    "nearly pieces": ("NCCL WARN shm DataLoader worker CUDA gloo /dev/shm " * 20 + "\n") * 60,
    "not printable": "\x00\x01\u202e" * (MAX_CHARACTERS // 3),
    "fatal": "Fatal Python error: \n" * 3000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("exit_", [Evidence(code=1), Evidence(signal=6), Evidence(code=137)], ids=["1", "abort", "137"])
def test_hostile_text_takes_milliseconds(name: str, exit_: Evidence):
    evidence = replace(exit_, stderr=HOSTILE[name])
    times = []
    for _ in range(5):
        began = time.process_time()
        diagnose(evidence)
        times.append(time.process_time() - began)

    assert min(times) < 4 * FIVE_MS  # under 5 ms on an idle core; the machine may be busy


LINES = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from(
            [
                *("Traceback (most recent call last):", "  File 'x', line 1", "ValueError: x", "KeyError:"),
                *("  + Exception Group Traceback (most recent call last):", "  | ExceptionGroup: a (1 sub-exception)"),
                *("  +-+---------------- 1 ----------------", "    | OSError: [Errno 28] full"),
                "During handling of the above exception, another exception occurred:",
                *(
                    "Exception ignored in: x",
                    "Fatal Python error: Aborted",
                    "Current thread 0x1 (most recent call first):",
                ),
                *("usage: x", "x: error: y", "[rank0]: Traceback (most recent call last):", "", "\r", "\x1b[31m"),
            ]
        ),
        st.sampled_from([piece.replace("…", " ") for _, piece in PIECES]),
    ),
    max_size=30,
)
KERNEL = st.lists(
    st.builds(
        KernelLine,
        st.floats(0, 400),
        st.one_of(
            st.text(max_size=60),
            st.sampled_from(
                [
                    "Out of memory: Killed process 4711 (x) total-vm:1kB",
                    "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/own,task=x,pid=4711,uid=0",
                    "NVRM: Xid (PCI:0000:c5:00): 79, pid='<unknown>'",
                    "x[4711]: segfault at 10 ip 20 sp 18 error 4",
                    "NVRM: Xid (",
                ]
            ),
        ),
    ),
    max_size=4,
)


@given(
    LINES,
    KERNEL,
    st.one_of(st.none(), st.integers(0, 255)),
    st.one_of(st.none(), st.integers(1, 64)),
    st.one_of(st.none(), st.text(max_size=60)),
)
@example(["  + Exception Group Traceback (most recent call last):"], [], 1, None, None)
def test_whatever_was_left_there_is_one_short_line(
    lines: list[str], kernel: list[KernelLine], code: int | None, signal: int | None, reported: str | None
):
    evidence = Evidence(code, signal, stderr="\n".join(lines), reported=reported, kernel=tuple(kernel), pids=(4711,))

    diagnosis = diagnose(evidence)

    assert len(diagnosis.line) <= MAX_SHOWN + 100
    assert diagnosis.line.isprintable()
    assert MEANINGS[diagnosis.kind].advice == diagnosis.advice


@given(st.text(max_size=2000))
def test_any_text_can_be_read(text: str):
    output = read_output(text)

    assert output.exception is None or output.exception.lines


def test_a_status_as_of_a_signal_does_not_hide_what_was_reported():
    text = "worker 1 of 2 was terminated by SIGKILL"

    diagnosis = diagnose(Evidence(code=137, reported=text))

    assert (diagnosis.kind, diagnosis.source, diagnosis.line) == (DeathKind.CHILD, Source.REPORT, text)
