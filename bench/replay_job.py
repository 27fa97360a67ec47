"""Runs an example in this process and prints what was replayed, as JSON: `python -m bench.replay_job EXAMPLE`.

The clocks run from the end of the restore to the report that training is done.
"""

import json
import runpy
import sys
import time
from pathlib import Path

from supervisor.protocol.wire.messages import Done, FromWorker, Replayed, Restored
from worker.process.reporting import ConsoleReporter
from worker.process.startup import current_attempt

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


class Recorder(ConsoleReporter):
    """Adds up what is reported of replays."""

    def __init__(self) -> None:
        self.replays: list[Replayed] = []
        self.began = self.ended = (0.0, 0.0)
        self.steps = 0

    def send_message(self, message: FromWorker) -> None:
        clocks = time.monotonic(), time.process_time()
        match message:
            case Restored():
                self.began = clocks
            case Done(step=step):
                self.ended, self.steps = clocks, step
            case Replayed():
                self.replays.append(message)


def main() -> None:
    """Prints one line."""
    recorder = Recorder()
    current_attempt().reporter = recorder
    example = sys.argv[1]
    if example == "charlm":
        from worker.__main__ import main as train

        train(["examples.charlm:training"])
    else:
        sys.argv = [example]
        runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    compared = [replay for replay in recorder.replays if replay.steps]
    report = {
        "steps": recorder.steps,
        "wall_s": recorder.ended[0] - recorder.began[0],
        "cpu_s": recorder.ended[1] - recorder.began[1],
        "replay_s": sum(replay.took_s for replay in recorder.replays),
        "replayed_steps": sum(replay.steps for replay in compared),
        "intervals": len(compared),
        "differences": [list(replay.differing) for replay in compared if replay.differing],
        "problems": [replay.problem for replay in recorder.replays if replay.problem],
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
