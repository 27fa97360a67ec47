"""From `package.module:function` to a training that runs."""

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.protocol.exit_codes import WorkerExit
from worker.process import attempt
from worker.process.standby import HOT

USAGE = "usage: python -m worker package.module:function"


class BadEntryPoint(Exception):
    """There is no such function to call; the text says what there is."""


def main(arguments: Sequence[str]) -> int:
    """Trains what the entry point describes. Leaves with BAD_LAUNCH if there is no such entry point.

    A standby does all of it that it may before it waits to be an attempt.
    """
    present = attempt.attempt_or_standby()
    if len(arguments) != 1:
        present.exit_with_error(WorkerExit.BAD_LAUNCH, USAGE)
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        describe = find_entry_point(arguments[0])
    except BadEntryPoint as error:
        present.exit_with_error(WorkerExit.BAD_LAUNCH, str(error))
    from worker import hot_standby, loop
    from worker.checkpoint import devices  # TensorFlow only once there is something to train

    heated = hot_standby.prepare(present, describe) if present.is_standby and present.launch.standby == HOT else None
    if heated is not None:
        hot_standby.wait_for_promotion(present, heated)
        loop.train(heated.training, heated.strategy, heated.step)
        return 0
    strategy = devices.strategy()
    with strategy.scope():
        training = describe()
    if not isinstance(training, loop.Training):
        present.exit_with_error(
            WorkerExit.BAD_LAUNCH,
            f"cannot train: {arguments[0]} gave a {type(training).__name__}, not a worker.Training",
        )
    loop.train(training, strategy)
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
            raise  # the module is there; something it imports is not
        raise BadEntryPoint(
            f"cannot use entry point {text!r}: there is no module {error.name!r} in {Path.cwd()} or the environment of "
            f"{sys.executable}; set directory= to the folder that holds it"
        ) from error
    function: Callable[[], object] | None = getattr(module, function_name, None)
    if not callable(function):
        there = "is not callable" if hasattr(module, function_name) else "does not exist"
        raise BadEntryPoint(f"cannot use entry point {text!r}: {function_name!r} {there} in {module.__file__}")
    return function
