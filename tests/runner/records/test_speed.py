"""How fast a job trains, summed up from what its worker reports."""

from supervisor.core.program.effects import Spawn
from supervisor.protocol.wire import messages
from supervisor.runner.records.speed import SpeedRecorder


class Reports:
    """A worker that reports ten steps a second, each of `step_s` seconds."""

    def __init__(self) -> None:
        self.speed = SpeedRecorder()
        self.now, self.step = 0.0, 0
        self.restore()

    def restore(self, replicas: int | None = 2, microbatches: int = 1) -> None:
        self.speed.on_effect(Spawn(1, microbatches), self.now)
        self.speed.on_message(messages.Restored(1, self.step, None, 0.0, replicas=replicas), self.now)

    def train(self, for_s: float, step_s: float, section: str | None = None, **more: float) -> None:
        ends_at = self.now + for_s
        while self.now < ends_at:
            self.step += 20
            self.now += 20 * step_s
            message = messages.Progress(1, self.step, step_s=step_s, section=section, **more)
            self.speed.on_message(message, self.now)


def test_a_job_that_becomes_slower_is_seen_once():
    reports = Reports()
    reports.train(3000.0, 0.1)
    assert not reports.speed.pop_change()
    reports.train(400.0, 0.2, data_s=1.0)

    assert reports.speed.pop_change() and not reports.speed.pop_change()
    slowdown = reports.speed.detector.slowdown()
    assert slowdown is not None and slowdown.percent == 100
    recent, _ = reports.speed.detector.recent_and_usual()
    assert all(window.data_s / window.length_s == 0.25 for window in recent[-5:])


def test_what_was_reported_behind_an_evaluation_or_a_save_is_no_step_time():
    reports = Reports()
    reports.train(3000.0, 0.1)
    for _ in range(100):
        reports.train(2.0, 0.1, section="evaluation")
        reports.train(80.0, 4.0)  # the time since the report before, which the evaluation took

    assert not reports.speed.pop_change()


def test_on_fewer_devices_and_with_divided_batches_it_has_another_usual_speed():
    reports = Reports()
    reports.train(3000.0, 0.1)
    reports.restore(replicas=1)
    assert reports.speed.usual_step_s is None
    reports.train(3000.0, 0.2)
    assert not reports.speed.pop_change()
    reports.restore(replicas=1, microbatches=2)
    assert reports.speed.usual_step_s is None


def test_a_restart_alone_keeps_what_is_usual():
    reports = Reports()
    reports.train(3000.0, 0.1)
    reports.restore()

    assert reports.speed.usual_step_s is not None


def test_steps_that_are_reported_again_count_once():
    reports = Reports()
    reports.train(3000.0, 0.1)
    for _ in range(10_000):
        reports.speed.on_message(messages.Progress(1, reports.step, step_s=9.0, section="data"), reports.now)

    assert not reports.speed.pop_change()
