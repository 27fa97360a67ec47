"""`python -m worker package.module:function`: trains what the function describes with the ready-made loop."""

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.protocol.wire.exits import WorkerExit
from worker.process.standby import HOT
from worker.process.startup import attempt_or_standby

USAGE = "usage: python -m worker package.module:function"


class BadEntryPoint(Exception):
    """The entry point names no function that can be called; the text says why."""


def main(arguments: Sequence[str]) -> int:
    """Trains what the entry point describes. Exits with BAD_LAUNCH if there is no such entry point.

    A hot standby builds and traces its model before it waits to become an attempt.
    """
    present = attempt_or_standby()
    if len(arguments) != 1:
        present.exit_with_error(WorkerExit.BAD_LAUNCH, USAGE)
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        describe = find_entry_point(arguments[0])
    except BadEntryPoint as error:
        present.exit_with_error(WorkerExit.BAD_LAUNCH, str(error))
    from worker import hot_standby, loop  # these import TensorFlow: only once there is something to train
    from worker.devices import strategies

    prepared = None
    if present.is_standby and present.launch.standby == HOT:
        prepared = hot_standby.prepare(present, describe)
    if prepared is not None:
        hot_standby.wait_for_promotion(present, prepared)
        loop.train(prepared.training, prepared.strategy, prepared.step)
        return 0
    strategy = strategies.strategy()
    loop.train(loop.build_training(describe, strategy, present), strategy)
    return 0


def find_entry_point(text: str) -> Callable[[], object]:
    """The function named `package.module:function`.

    Raises BadEntryPoint if it doesn't exist or can't be called; an exception inside the module passes through.
    """
    module_name, colon, function_name = text.partition(":")
    if not (module_name and colon and function_name):
        raise BadEntryPoint(f"cannot use entry point {text!r}: it is not of the form package.module:function")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; something that it imports does not
        raise BadEntryPoint(
            f"cannot use entry point {text!r}: there is no module {error.name!r} in {Path.cwd()} or the environment of "
            f"{sys.executable}; set directory= to the folder that contains it"
        ) from error
    function: Callable[[], object] | None = getattr(module, function_name, None)
    if not callable(function):
        problem = "is not callable" if hasattr(module, function_name) else "does not exist"
        raise BadEntryPoint(f"cannot use entry point {text!r}: {function_name!r} {problem} in {module.__file__}")
    return function


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
