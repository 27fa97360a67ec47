"""A TF1-style loop (graph, session, Saver) as a job: its counter goes on where it stopped.

A folder that `tf.compat.v1.train.Saver` wrote is a start, as it is. What a session's random operations hold inside
their kernels is in no checkpoint: give them seeds made of the step, or draw in NumPy.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import tensorflow as tf

from supervisor.protocol import foreign, layout, tensorbundle
from supervisor.protocol.damage import BundleError
from worker import attempt
from worker.files import FilesRun, NotFinite, Unfit

MAX_NAMED = 10  # variables in a message


class Run(FilesRun):
    """One training run around a session's loop, as a context manager; see `FilesRun`.

    Enter it after `session.run(global_variables_initializer())`: what is restored replaces the initial values.
    """

    def __init__(
        self,
        session: Any,
        *,
        total_steps: int,
        directory: str | Path | None = None,
        interval: str | None = None,
    ) -> None:
        """`session`: a tf.compat.v1.Session whose graph is complete."""
        self._saver_files = _SaverFiles(session)
        super().__init__(self._saver_files, total_steps=total_steps, directory=directory, interval=interval)

    def __enter__(self) -> Self:
        super().__enter__()
        self._saver_files.look()
        return self

    def steps(self) -> Iterator[int]:
        """The numbers of the steps that are left, from 0 of the first start on: `for step in run.steps()`."""
        while not self.reached:
            yield self.step

    def step_done(self, **metrics: float) -> None:
        """One step is complete: counts it, reports it, and saves if it is time. `metrics`: numbers."""
        super().step_done(epoch=0, batch=self.step + 1, **{name: float(value) for name, value in metrics.items()})


class _SaverFiles:
    """The files that TF1's Saver writes."""

    versions: Mapping[str, str]
    topology: Mapping[str, str | int | bool]

    def __init__(self, session: Any) -> None:
        self._session = session
        with session.graph.as_default():
            self._saver = tf.compat.v1.train.Saver(max_to_keep=0)  # 0: it deletes nothing, which is not its task here
            floats = [each for each in tf.compat.v1.global_variables() if each.dtype.base_dtype.is_floating]
            self._finite = {each.op.name: tf.reduce_all(tf.math.is_finite(each)) for each in floats}
        self._on_purpose: frozenset[str] = frozenset()
        self.versions = {"tensorflow": tf.__version__}
        self.topology = {"deterministic": attempt.this().launch.deterministic}

    def write(self, folder: Path) -> None:
        try:
            self._check_finite()
            self._saver.save(self._session, str(folder / layout.PREFIX), write_meta_graph=False, write_state=False)
        except tf.errors.OpError as error:
            raise OSError(" ".join(str(error.message).split())[:300]) from error

    def look(self) -> None:
        """Notes which variables are not finite on purpose, before the first step."""
        self._on_purpose = frozenset(self._not_finite())

    def _not_finite(self) -> list[str]:
        if attempt.this().launch.on_nan == "off" or not self._finite:
            return []
        found = self._session.run(self._finite)
        return sorted(name for name, is_finite in found.items() if not is_finite)

    def _check_finite(self) -> None:
        bad = [each for each in self._not_finite() if each not in self._on_purpose]
        if bad:
            more = f" and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
            raise NotFinite(f"{', '.join(bad[:MAX_NAMED])}{more} not finite")

    def read(self, folder: Path) -> None:
        self._restore(folder / layout.PREFIX)

    def read_foreign(self, prefix: Path) -> int:
        try:
            step, _ = foreign.step_of(tensorbundle.look(prefix))
        except BundleError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None  # it was just proven: this passes, or the next proof says what is wrong
            raise Unfit(str(error)) from error
        self._restore(prefix)
        return step

    def _restore(self, prefix: Path) -> None:
        held = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
        wanted = {each.op.name: each.shape.as_list() for each in self._saver_variables()}
        odd = [f"{name} {shape}" for name, shape in sorted(wanted.items()) if held.get(name) != shape]
        if odd:
            there = ", ".join(f"{name} {shape}" for name, shape in sorted(held.items()))
            raise Unfit(f"it does not hold {', '.join(odd)}"[:1000] + f"; it holds {there}"[:800])
        try:
            self._saver.restore(self._session, str(prefix))
        except ValueError as error:  # it found no file, where one was just read
            raise OSError(attempt.one_line(error)) from error

    def _saver_variables(self) -> list[Any]:
        with self._session.graph.as_default():
            return list(tf.compat.v1.global_variables())
