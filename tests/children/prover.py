"""Stands in for what proves a job (supervisor/proof_child.py): does what PROVER in the plan's environment says.

It reads the plan, becomes its user, makes the scratch folder as the real one does, with a file in it, and starts a
child that has the folder in its environment and has left its session.
"""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

from supervisor.host.processes import tree
from supervisor.host.proof_process import ProofProgress, Proven, encode_output
from supervisor.protocol.proof import Difference, ProofReport, Verdict

GARBAGE = (
    b"\0\xff" * 100,
    b"[" * 100_000,
    b'{"proven":{"report":{}}}',
    b'{"progress":{"doing":7}}',
    b"null",
    b'{"proven":1e999}',
)


def say(said: ProofProgress | Proven) -> None:
    os.write(1, encode_output(said))


def main() -> None:
    plan = pickle.load(sys.stdin.buffer)
    if plan.identity is not None:
        plan.identity.assume()
    tree.become_subreaper()
    how = plan.environment["PROVER"]
    place = plan.folders[0] / plan.name
    place.mkdir(mode=0o700)
    (place / "deep").mkdir()
    (place / "deep" / "file").write_text("x")
    environment = {"PATH": "/usr/bin:/bin", "OF": str(place)}
    subprocess.Popen(["/bin/sh", "-c", "setsid sleep 600 & exec sleep 600"], env=environment, stdin=subprocess.DEVNULL,
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    Path(plan.folders[0], "began").write_text(str(os.getpid()))
    say(ProofProgress("undisturbed run", 0.25, 5, 20))
    match how.split(":"):
        case ["exact"]:
            say(Proven(ProofReport(Verdict.EXACT, "another", 5.0, 1.0, 20, script="0123"), "exact: all bits equal"))
        case ["different"]:
            difference = Difference("metric loss", 41, "1.0", "2.0")
            report = ProofReport(Verdict.DIFFERENT, "another", 5.0, 1.0, 20, differences=(difference,))
            say(Proven(report, "different: metric loss at step 41"))
        case ["garbage", number]:
            os.write(1, GARBAGE[int(number)] + b"\n")
        case ["dies"]:
            sys.exit("ValueError: it can't")
        case ["floods", "stdout"]:
            while True:
                os.write(1, b"x" * 65536)
        case ["floods", "progress"]:
            while True:
                say(ProofProgress("undisturbed run" * 10))
        case ["floods", "stderr"]:
            while True:
                os.write(2, b"x" * 65536)
        case ["kills", "itself"]:
            os.kill(os.getpid(), 9)
        case ["never"]:
            pass
    time.sleep(600)  # also after its report


if __name__ == "__main__":
    main()
