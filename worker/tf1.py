"""A TF1-style loop (graph, session, Saver) as a job: its step counter continues where it stopped.

Training can start from a folder that `tf.compat.v1.train.Saver` wrote, without conversion. The state that random
operations keep inside their kernels is in no checkpoint: seed them from the step, or draw in NumPy.
"""

import contextlib
import errno
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import tensorflow as tf

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import foreign
from supervisor.protocol.damage import BundleError
from supervisor.protocol.tensorbundle import verify
from worker.devices import strategies, tensorflow_conditions
from worker.files.files_run import FilesRun, NotFinite, Unfit
from worker.internals.tensorflow_internals import slice_of
from worker.process.reporting import describe_error, mentions_full_disk
from worker.process.startup import current_attempt
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.saving.directory import UNFIT_REMEDY
from worker.state.state_file import Position

_WHERE_MADE = re.compile(r"\AGraph execution error:.*^Node: '[^']*'$", re.DOTALL | re.MULTILINE)
_NO_GPU = tf.compat.v1.ConfigProto(device_count={"GPU": 0})


def prepare(seed: int = strategies.SEED, directory: str | Path | None = None, *, deterministic: bool = False) -> None:
    """Seeds Python's, NumPy's and TensorFlow's generators and the default graph.

    Call it before the graph is built and before there is a session. In a graph that is made later, call
    `tf.compat.v1.set_random_seed`.

    With `deterministic`, or if the job's configuration says so, it also makes operations deterministic and fixes the
    number of intra-op threads, on which sums depend: to what the script or TF_NUM_INTRAOP_THREADS sets, or else to the
    number with which the job (whose checkpoints are in its checkpoint_dir or in `directory`) trained before. This
    applies to sessions without a `config`. In a config of your own, set `intra_op_parallelism_threads` to
    `tf.config.threading.get_intra_op_parallelism_threads()`.
    """
    launch = current_attempt().launch
    if launch.deterministic or deterministic:
        strategies.make_deterministic(
            launch.checkpoint_dir or (Path(directory) if directory is not None else None), seed
        )
    else:
        tf.keras.utils.set_random_seed(seed)
    tf.compat.v1.set_random_seed(seed)


class SessionRun(FilesRun):
    """One training run around a session's loop, as a context manager; see `FilesRun`.

    Enter it after `session.run(global_variables_initializer())`: the restored values replace the initial ones.
    """

    _public_name = "worker.tf1.Run"

    def __init__(
        self,
        session: Any,
        *,
        total_steps: int | None = None,
        directory: str | Path | None = None,
        interval: str | None = None,
        summaries: str | Path | None = None,
        summary_every: int = SUMMARY_EVERY,
        **options: Any,
    ) -> None:
        """`session`: a tf.compat.v1.Session whose graph is complete. `options`: further arguments of `FilesRun`."""
        self._saver_files = _SaverFiles(session)
        super().__init__(self._saver_files, total_steps=total_steps, directory=directory, interval=interval,
                         summaries=summaries, summary_every=summary_every, **options)  # fmt: skip

    def __enter__(self) -> Self:
        self._saver_files.check_finite(self._on_nan != "off")
        is_first_run, steps_before = not self._attempt.has_begun_run, self._saver_files.global_step()
        super().__enter__()
        if is_first_run and self.step == 0:
            self._explain_own_restore(steps_before)
        return self

    def steps(self, per_epoch: int | None = None) -> Iterator[int]:
        """Yields the numbers of the remaining steps; the first step of the job is 0: `for step in run.steps():`.

        With `per_epoch`, those that are left of an epoch of so many steps, for use inside of `run.epochs`.
        Raises TypeError or RuntimeError where it would never end.
        """
        self._require_with("run.steps")
        if per_epoch is not None:
            self._check_loops()
            return self._over_epochs("run.steps", lambda: self._steps_of_epoch(int(per_epoch)))
        if self._in_epochs:
            raise RuntimeError(
                "cannot tell where an epoch ends; inside of run.epochs write run.steps(n), n for each epoch"
            )
        if self.total_steps is None:
            raise TypeError(
                "cannot count steps without an end; give worker.tf1.Run total_steps=, or write run.steps(n)"
            )
        return self._over_epochs("run.steps", lambda: self._steps_of_epoch(None))

    def _steps_of_epoch(self, count: int | None) -> Iterator[int]:
        while count is None or self._position.batch < count:
            self._consumed = Position(self._position.epoch, self._position.batch + 1, None)
            yield self.step

    def step_done(self, *unnamed: Any, **metrics: Any) -> None:
        """One step is complete: counts it, reports it, and saves if it is time. `metrics`: numbers."""
        self._complete_step(sys._getframe(1), unnamed, metrics)


Run = SessionRun
"""What scripts call it."""


class _SaverFiles:  # its name is the `kind` in state.json
    """The files that TF1's Saver writes."""

    def __init__(self, session: Any) -> None:
        self._session = session
        with session.graph.as_default():
            self._saver = tf.compat.v1.train.Saver(max_to_keep=0)  # 0: the Saver deletes nothing
            floats = [variable for variable in tf.compat.v1.global_variables() if variable.dtype.base_dtype.is_floating]
            self._finite = {variable.op.name: tf.reduce_all(tf.math.is_finite(variable)) for variable in floats}
        self._checks_finite = True
        self._expected_not_finite: frozenset[str] = frozenset()
        self._copier = _SessionCopier(session)

    @property
    def versions(self) -> Mapping[str, str]:
        return tensorflow_conditions.versions()

    @property
    def topology(self) -> Mapping[str, str | int | bool]:
        return tensorflow_conditions.topology(None, self._session)

    def write(self, folder: Path) -> None:
        with _as_python_errors():
            self._require_finite()
            self._saver.save(self._session, str(folder / layout.PREFIX), write_meta_graph=False, write_state=False)

    def copied(self) -> Callable[[Path], None] | None:
        with _as_python_errors():
            self._require_finite()
            return self._copier.copied()

    def global_step(self) -> int:
        """The value of TensorFlow's global step; 0 if the graph has none."""
        counter = tf.compat.v1.train.get_global_step(self._session.graph)
        return 0 if counter is None else int(self._session.run(counter))

    def check_finite(self, checks: bool) -> None:
        """Whether to refuse a state with values that are not finite, except where it has them now: on purpose."""
        self._checks_finite = checks
        self._expected_not_finite = frozenset(self._not_finite())

    def _not_finite(self) -> list[str]:
        if not self._checks_finite or not self._finite:
            return []
        results = self._session.run(self._finite)
        return sorted(name for name, is_finite in results.items() if not is_finite)

    def _require_finite(self) -> None:
        bad = [name for name in self._not_finite() if name not in self._expected_not_finite]
        if bad:
            raise NotFinite.naming(bad)

    def read(self, folder: Path) -> None:
        self._restore(folder / layout.PREFIX)

    def read_foreign(self, prefix: Path) -> int:
        try:
            step, _ = foreign.step_of_bundle(verify.read_counters(prefix))
        except BundleError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None  # it was just verified: temporary, or found by the next verification
            raise Unfit(str(error)) from error
        self._restore(prefix)
        return step

    def _restore(self, prefix: Path) -> None:
        reader = tf.train.load_checkpoint(str(prefix))
        dtypes = reader.get_variable_to_dtype_map()
        held = {name: _describe(dtypes[name], shape) for name, shape in reader.get_variable_to_shape_map().items()}
        with self._session.graph.as_default():
            wanted = dict(map(_saved_name_and_form, tf.compat.v1.global_variables()))
        differing = [
            f"{name} is {held[name]} in the checkpoint and {form} in the program"
            for name, form in sorted(wanted.items())
            if name in held and held[name] != form
        ]
        absent = [f"{name} {form}" for name, form in sorted(wanted.items()) if name not in held]
        if differing:
            raise Unfit(f"{'; '.join(differing)[:1800]}; {UNFIT_REMEDY}")
        if absent:
            there = ", ".join(f"{name} {form}" for name, form in sorted(held.items()))
            raise Unfit(f"it does not hold {', '.join(absent)}"[:1000] + f"; it holds {there}"[:800])
        try:
            self._saver.restore(self._session, str(prefix))
        except ValueError as error:  # it found no file, although one was just read
            raise OSError(describe_error(error)) from error


def _saved_name_and_form(variable: Any) -> tuple[str, str]:
    """Name, type and shape under which a variable is saved. The parts of a partitioned variable are saved as one."""
    part, dtype = slice_of(variable), variable.dtype.base_dtype
    if part is not None:
        return part.full_name, _describe(dtype, part.full_shape)
    return variable.op.name, _describe(dtype, variable.shape.as_list())


def _describe(dtype: Any, shape: Any) -> str:
    return f"{tf.as_dtype(dtype).name} {list(shape)}"


class _SessionCopier:
    """Copies a session's variables and writes the copies like its Saver, while the session continues."""

    def __init__(self, session: Any) -> None:
        with session.graph.as_default():
            variables = sorted(tf.compat.v1.global_variables(), key=lambda variable: str(variable.op.name))
            others = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS)
        self._session = session
        self._variables = variables
        self._can = not others and all(slice_of(variable) is None for variable in variables)
        with tf.Graph().as_default() as self._graph:
            self._given = [
                tf.compat.v1.placeholder(variable.dtype.base_dtype, variable.shape) for variable in variables
            ]
            self._prefix = tf.compat.v1.placeholder(tf.string, [])
            names = [variable.op.name for variable in variables]
            self._write = tf.raw_ops.SaveV2(
                prefix=self._prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=self._given
            )

    def copied(self) -> Callable[[Path], None] | None:
        """See `Copying`; None if there are partitioned variables, tables and the like, which only the Saver can write.

        Raises TensorFlow's errors.
        """
        if not self._can:
            return None
        values = [_owned_array(value) for value in self._session.run(self._variables)]
        fed = dict(zip(self._given, values, strict=True))

        def write(folder: Path) -> None:
            with _as_python_errors(), tf.compat.v1.Session(graph=self._graph, config=_NO_GPU) as session:
                session.run(self._write, {**fed, self._prefix: str(folder / layout.PREFIX)})

        return write


def _owned_array(value: Any) -> Any:
    """A session's result in memory of its own. Usually it is, but nothing guarantees that."""
    return np.require(value, requirements="O") if isinstance(value, np.ndarray) else value


@contextlib.contextmanager
def _as_python_errors() -> Iterator[None]:
    """Turns TensorFlow's errors about memory, disks and devices into MemoryError and OSError.

    TensorFlow has one class for a full disk and for a lack of memory. Only a full disk becomes an OSError with ENOSPC,
    for which older checkpoints may be deleted.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        if mentions_full_disk(str(error.message)):
            raise OSError(errno.ENOSPC, _short_message(error)) from error
        raise MemoryError(_short_message(error)) from error
    except tf.errors.OpError as error:
        raise OSError(_short_message(error)) from error


def _short_message(error: tf.errors.OpError) -> str:
    """The message without the place in the script where the operation was made, which comes first and fills pages."""
    return " ".join(_WHERE_MADE.sub("", str(error.message)).split())[:300]
