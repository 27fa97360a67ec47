"""A run whose state a tf.train.Checkpoint tracks: what every run asks of its library, answered for TensorFlow.

`worker.Run` is such a run with data and steps.
"""

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from worker.base.run_base import RunBase
from worker.base.run_settings import RunSettings
from worker.checks.watch.kept.kept_values import Kept
from worker.data import collectives
from worker.export import RunExports
from worker.process import local_processes
from worker.replay.replayed_run import LoopAccess
from worker.run.gang_checkpoints import GangCheckpoints
from worker.run.misuse import explain
from worker.run.replayed_state import ReplayedTensorFlow, copy_small_variables
from worker.run.run_checkpoints import RunCheckpoints, SavedState
from worker.state import extra_state, random_generators
from worker.state.callback_state import CallbackState, callbacks_in, is_keras_callback
from worker.state.random_generators import GENERATORS
from worker.state.replica_values import ALONE, MetricState, Place
from worker.state.run_state import HasState


class TrackedRun(RunBase):
    """A run of one process, or of one of several workers that train together."""

    def __init__(
        self, checkpoint: tf.train.Checkpoint, strategy: tf.distribute.Strategy | None, settings: RunSettings
    ) -> None:
        gang = self._gang = collectives.gang_of(strategy)
        super().__init__(settings if gang is None or gang.is_chief else replace(settings, summaries=None))
        self._writes_directory = gang is None or gang.is_chief
        self.strategy = strategy
        self._tracked = checkpoint
        self._generators = extra_state.check_own_generators(settings.generators)  # the script's, Keras' too
        saved = SavedState(checkpoint, strategy, self._generators, self.state)
        not_finite = self._not_finite if self._on_nan != "off" else None
        self._checkpoints: RunCheckpoints = (
            RunCheckpoints(self._attempt, settings, saved, not_finite)
            if gang is None
            else GangCheckpoints(gang, self._attempt, settings, saved, not_finite)
        )
        self._exports = RunExports(self._attempt, checkpoint, is_chief=gang is None or gang.is_chief)

    def _failed(self, error: BaseException) -> None:
        if (text := explain(error, self.strategy)) is not None:
            error.add_note(f"stepkeeper: {text}")
        if (others := local_processes.find_local_processes()) is not None and isinstance(error, tf.errors.OpError):
            others.wait_for_member_failure()
        super()._failed(error)

    def _replayed_run(self, loop: LoopAccess) -> ReplayedTensorFlow:
        return ReplayedTensorFlow(loop, self._checkpoints, self._tracked)

    @property
    def _trains_with_others(self) -> bool:
        return self._gang is not None or self._attempt.launch.member is not None

    def _digest_generators(self) -> bytes:
        return repr(random_generators.read([g for g in self._generators if isinstance(g, GENERATORS)])).encode()

    def _read_generators(self) -> dict[str, Any]:
        return extra_state.read_generators(self._generators)

    def _write_generators(self, states: Mapping[str, Any]) -> None:
        extra_state.write_generators(states, self._generators)

    def _copy_small(self) -> Callable[[], None]:
        return copy_small_variables(self._tracked)

    def _keep(self, kept: Kept) -> None:
        super()._keep(kept)
        tracked = tf.train.TrackableView(self._tracked).descendants()
        # asked of the class, as reading an attribute of a variable of several processes makes them wait for each other
        kept.identities |= {id(node) for node in tracked if hasattr(type(node), "deserialize")}
        held = [callback for value in self.state.held().values() for callback in callbacks_in(value) or [value]]
        kept.identities |= {id(value) for value in held if is_keras_callback(value)}

    def _adapt_state(self, value: Any) -> HasState | None:
        place = ALONE if self._gang is None else Place(self._gang.rank, self._gang.size)
        return MetricState.of(value, place) or CallbackState.of(value)

    def _agree_on_order(self, digest: bytes) -> None:
        if self._gang is None:
            return
        mine = [zlib.crc32(digest)]
        if self._gang.sum([int(self._gang.from_chief(mine) != mine)])[0]:
            raise RuntimeError(
                "cannot train: the workers go through the epoch in different orders, of which a checkpoint holds one; "
                "draw the order of run.order from a generator that has the same seed in all of them"
            )

    def _serve_exports(self) -> None:
        started = time.monotonic()
        self._exports.serve(self.step)
        self._checkpoints.stalled_s += time.monotonic() - started

    def _export(self) -> None:
        self._exports.export_trained(self.step)
        self._exports.serve(self.step)
