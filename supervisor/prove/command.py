"""The command line of a proof: `python -m worker.prove`, `python -m supervisor.prove`, `supervisord --prove`."""

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from supervisor.config import Config, ConfigError, load_config
from supervisor.protocol.numbers import real_number, whole_number
from supervisor.protocol.proof import EXIT_STATUS, MAX_KILLS, ProofReport, Verdict
from supervisor.prove.devices import require_free_gpus, require_idle
from supervisor.prove.display import Bar, Display, json_lines, plain_lines
from supervisor.prove.plan import ProofOptions
from supervisor.prove.proof import Proof
from supervisor.prove.scratch import CannotProve, ProvableJob, Scratch, job_of

BecomeUser = Callable[[str], None]
"""Makes this process that user's, for good. Raises OSError."""

INTERRUPTED = 130  # as a shell's command that SIGINT ended
USAGE_ERROR = 64  # EX_USAGE: not 2, which is a verdict

_EPILOG = (
    "Exit status: 0 exact, 1 different, 2 not provable, 64 if the command line is wrong, 130 after Ctrl-C. "
    "What the command writes outside of its checkpoints is not isolated: it runs in its own directory, and files that "
    "it writes there (logs, exported models) are written by the proof too. STEPKEEPER_PROOF is set in its environment, "
    "so that a script can tell."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}\n")


def parser(program: str = "prove") -> argparse.ArgumentParser:
    """The parser of the options."""
    options = _Parser(
        prog=program,
        usage="%(prog)s [options] -- COMMAND ...\n       %(prog)s [options] -c FILE [JOB]",
        description="Proves that training killed at any instant ends bit for bit as an undisturbed one does: runs the "
        "job's own command in a scratch folder, once undisturbed and once with kills, and compares every tensor, value "
        "and metric.",
        epilog=_EPILOG,
    )
    add = options.add_argument
    add("-c", "--configuration", type=Path, metavar="FILE", help="take the job from this configuration file")
    add(
        "--kills",
        type=partial(_count, most=MAX_KILLS),
        default=3,
        metavar="N",
        help="how many times to kill it (default: 3)",
    )
    add("--steps", type=_count, metavar="N", help="train for N steps (default: about a minute, and over the end of an "
        "epoch if that comes within three)")  # fmt: skip
    add("--epochs", type=_epochs, metavar="X", help="train for X epochs, such as 1.2")
    add("--scratch", type=Path, metavar="DIR", help="make the scratch folder here (default: the temporary folder)")
    add("--keep", action="store_true", help="keep the scratch folder: checkpoints, logs, records")
    add("--json", action="store_true", help="print JSON: one object a line for progress, the report last")
    add("--deterministic", action="store_true", help="as deterministic = true in a configuration")
    add("--anyway", action="store_true", help="also if the GPUs are in use")
    add("job_or_command", nargs="*", metavar="JOB | COMMAND", help=argparse.SUPPRESS)
    return options


def _count(text: str, most: int = 1_000_000_000) -> int:
    number = whole_number(text, 1, most)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no whole number from 1 to {most}")
    return number


def _epochs(text: str) -> float:
    value = real_number(text, 1.0, 1e6)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no number of epochs; write 1 or more, such as 1.2")
    return value


def main(arguments: Sequence[str] | None = None, program: str = "prove", become: BecomeUser | None = None) -> int:
    """Carries a proof out; returns its exit status. `become`: makes this process a user's, for a job of theirs."""
    line = list(sys.argv[1:] if arguments is None else arguments)
    command = line[line.index("--") + 1 :] if "--" in line else []
    options = parser(program).parse_args(line[: line.index("--")] if "--" in line else line)
    words: list[str] = options.job_or_command
    if options.configuration is None:
        words, command = [], command or words
    if options.steps is not None and options.epochs is not None:
        parser(program).error("--steps and --epochs say two different lengths; give one of them")
    if bool(command) == (options.configuration is not None) or len(words) > 1:
        parser(program).error("name a command behind --, or a configuration file with -c and one of its jobs")
    name = words[0] if words else None
    display: Display = json_lines() if options.json else Bar() if sys.stderr.isatty() else plain_lines()
    began_at = time.monotonic()
    try:
        with interruptible(), display:
            report = _prove(options, name, command, display, become)
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be gone
            print("interrupted: nothing is left of the proof", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except (CannotProve, ConfigError, OSError) as error:
        job = name or (Path(command[-1]).name if command else str(options.configuration))
        report = ProofReport(
            Verdict.NOT_PROVABLE, job, time.time(), round(time.monotonic() - began_at, 1), reason=str(error)
        )
    display.report(report)
    return EXIT_STATUS[report.verdict]


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP (the terminal closes) raise KeyboardInterrupt, unless they are ignored (nohup).

    A second signal does not interrupt the clean-up.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def interrupt(number: int, frame: object) -> NoReturn:
        for signal_ in before:
            signal.signal(signal_, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prove(
    options: argparse.Namespace,
    name: str | None,
    command: Sequence[str],
    display: Display,
    become: BecomeUser | None,
) -> ProofReport:
    job = _as_its_user(_job(options, name, command), become)
    with Scratch(options.scratch, keep=options.keep) as scratch:
        if options.keep:
            print(f"the scratch folder is {scratch.path}", file=sys.stderr)  # noqa: T201
        wanted = ProofOptions(options.kills, options.steps, options.epochs)
        return Proof(job, wanted, scratch, display.show).carry_out()


def _as_its_user(job: ProvableJob, become: BecomeUser | None) -> ProvableJob:
    """The job; as root, becomes the job's user first: from here on all that is read was written by that user.

    Raises CannotProve.
    """
    if job.user is None or os.geteuid() != 0:
        return job
    if become is None:
        raise CannotProve(f"root proves a job of {job.user} by `supervisord --prove FILE JOB`")
    try:
        become(job.user)
    except OSError as error:
        raise CannotProve(error.strerror or str(error)) from error
    if not os.access(sys.executable, os.X_OK):
        remedy = "install stepkeeper where that user can read it"
        raise CannotProve(f"the job's user can't execute {sys.executable}, with which it is proven; {remedy}")
    return replace(job, user=None, keys={key: value for key, value in job.keys.items() if key != "user"})


def _job(options: argparse.Namespace, name: str | None, command: Sequence[str]) -> ProvableJob:
    keys = {"deterministic": "true"} if options.deterministic else {}
    if options.configuration is None:
        if shutil.which(command[0]) is None:
            raise CannotProve(f"there is no command {command[0]!r}; write for example: -- python train.py")
        job = ProvableJob(_name_of(command), tuple(command), Path.cwd(), {}, keys)
        if not options.anyway:
            require_free_gpus(job)
        return job
    config = load_config(options.configuration.absolute(), os.environ)
    program = config.programs[name or _only_job(config)] if name is None or name in config.programs else None
    if program is None:
        raise CannotProve(f"{config.path} has no job {name!r}; it has {', '.join(_jobs(config)) or 'none'}")
    job = job_of(program, config.supervisord.directory or Path.cwd())
    if not options.anyway:
        require_idle(config, job)
    return ProvableJob(job.name, job.command, job.directory, job.environment, {**job.keys, **keys}, job.user)


def _jobs(config: Config) -> list[str]:
    return [program.name for program in config.programs.values() if program.job is not None]


def _only_job(config: Config) -> str:
    jobs = _jobs(config)
    if len(jobs) != 1:
        which = f"has the jobs {', '.join(jobs)}; name one of them" if jobs else "has no training job"
        raise CannotProve(f"{config.path} {which}")
    return jobs[0]


def _name_of(command: Sequence[str]) -> str:
    """A name for a command: that of its script."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    characters = (character if character.isalnum() or character in "-_" else "-" for character in Path(script).stem)
    stem = "".join(characters).strip("-") or "job"
    return stem if stem not in ("all", "supervisord") else f"{stem}-job"
