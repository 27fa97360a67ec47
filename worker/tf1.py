"""A TF1-style loop (graph, session, Saver) as a job: its counter goes on where it stopped.

A folder that `tf.compat.v1.train.Saver` wrote is a start, as it is. What a session's random operations hold inside
their kernels is in no checkpoint: give them seeds made of the step, or draw in NumPy.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from supervisor.protocol import foreign, layout, tensorbundle
from supervisor.protocol.damage import BundleError
from worker import attempt
from worker.files import FilesRun, Unfit


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
        super().__init__(_SaverFiles(session), total_steps=total_steps, directory=directory, interval=interval)

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
        self.versions = {"tensorflow": tf.__version__}
        self.topology = {"deterministic": attempt.this().launch.deterministic}

    def write(self, folder: Path) -> None:
        try:
            self._saver.save(self._session, str(folder / layout.PREFIX), write_meta_graph=False, write_state=False)
        except tf.errors.OpError as error:
            raise OSError(" ".join(str(error.message).split())[:300]) from error

    def read(self, folder: Path) -> None:
        self._restore(folder / layout.PREFIX)

    def read_foreign(self, prefix: Path) -> int:
        try:
            step, _ = foreign.step_of(tensorbundle.look(prefix))
        except BundleError as error:
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
        self._saver.restore(self._session, str(prefix))

    def _saver_variables(self) -> list[Any]:
        with self._session.graph.as_default():
            return list(tf.compat.v1.global_variables())
