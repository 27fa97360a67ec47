"""What checkpoints hold of a loop beside its model, as far as code between two steps may change it: read, copied, and
put back after the head of an epoch has run once more."""

from collections.abc import Callable, Mapping
from typing import Any

from worker.state import random_generators
from worker.state.run_state import RunState

SMALL_BYTES = 16 << 20  # of one variable; heads reset metrics and step schedulers, and do not rewrite whole kernels


class SavedLoopState:
    """Of one run; each library adds what it has of its own."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        """Python values of the loop, by name, which each checkpoint holds."""
        self._own_generators: tuple[Any, ...] = ()  # the script's, of NumPy and Python

    def _digest_generators(self) -> bytes:
        """What changes when the script draws random numbers outside of compiled functions."""
        return repr(random_generators.read(self._own_generators)).encode()

    def _read_seed_sequence(self) -> Any:
        """Where the sequence is from which the framework takes seeds; None if it has none."""
        return None

    def _copy_saved_state(self) -> Callable[[], None]:
        """Copies what code between two steps may change of the saved state. Returns what puts it back."""
        values, put_back_generators, put_back_tensors = self.state.copied(), self._copy_generators(), self._copy_small()

        def put_back() -> None:
            self.state.put_back(values)
            put_back_generators()
            put_back_tensors()

        return put_back

    def _copy_small(self) -> Callable[[], None]:
        """Copies what of the saved tensors is small. Returns what puts it back."""
        return lambda: None

    def _copy_generators(self) -> Callable[[], None]:
        """Copies the state of all random generators that are saved. Returns what puts it back."""
        states = self._read_generators()
        return lambda: self._write_generators(states)

    def _read_generators(self) -> dict[str, Any]:
        """The states of random generators, by kind, as far as they are no tensors."""
        return random_generators.read(self._own_generators)

    def _write_generators(self, states: Mapping[str, Any]) -> None:
        random_generators.write(states, self._own_generators)
