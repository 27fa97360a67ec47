"""Plain values that a loop carries from step to step are named; what each pass makes anew is not."""

import functools
import itertools
import math
import sys
import time
from collections import Counter, deque, namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from worker.checks.findings import Finding
from worker.checks.loop_source import Entered
from worker.checks.watch import step_watch
from worker.checks.watch.step_watch import StepWatch
from worker.state.run_state import RunState


class Run:
    """What these loops need of a run. It looks at the frame that calls `step_done`, at the first step."""

    def __init__(self, *exempt: Any, of_data: Sequence[tuple[str, Any]] = (), entered: Entered | None = None) -> None:
        self.state = RunState()
        self.step = self.epoch = 0
        self.named: list[str] = []
        self.places: list[str] = []
        self.remedies: list[str] = []
        self._exempt = exempt
        self._of_data = of_data
        self._entered = entered
        self._watch: StepWatch | None = None

    def end_epoch(self) -> None:
        self.epoch += 1

    def epochs(self, count: int) -> Iterator[int]:
        for self.epoch in range(count):
            yield self.epoch

    def batches(self, data: Any) -> Iterator[Any]:
        for batch in data:
            yield batch
            if self._watch is not None:
                self._watch.begin_step()

    def step_done(self, **metrics: Any) -> None:
        self.step += 1
        if self._watch is None:
            exempt = (self, *self._exempt)
            self._watch = StepWatch(lambda kept: None, exempt, self.state, self._entered, of_data=lambda: self._of_data)
        found = self._watch.look(self.step, self.epoch, sys._getframe(1))
        self.named += [each.name.partition(" ")[0] for each in found]
        self.places += [each.name for each in found]
        self.remedies += [each.remedy for each in found]


DATA = [1.0, 2.0, 3.0]


def evaluate(loss: float = 1.0) -> float:
    return loss


def made_behind_the_step(run: Run) -> None:
    rate, begun = 0.1, 0.0
    for batch in run.batches(DATA):
        run.step_done(loss=batch * rate + begun)
        rate = 0.1 / (1 + run.step)


def best_of_epochs(run: Run) -> None:
    best, patience = 0.0, 0
    for _epoch in run.epochs(2):
        for batch in run.batches(DATA):
            run.step_done(loss=batch)
        accuracy = evaluate()
        if accuracy > best:
            best, patience = accuracy, 0
        else:
            patience += 1


def sum_of_an_epoch(run: Run) -> None:
    for _epoch in run.epochs(2):
        total_loss, count = 0.0, 0
        for batch in run.batches(DATA):
            total_loss += batch
            count += 1
            run.step_done()
        print(total_loss / count)


def lists_and_dicts(run: Run) -> None:
    losses, stats, seen = [], {"best": 0.0}, Counter()
    for batch in run.batches(DATA):
        losses.append(batch)
        stats["best"] = max(stats["best"], batch)
        seen[int(batch) % 2] += 1
        run.step_done()


def running_reward(run: Run) -> None:
    running_reward, episode = 0, 0
    rewards: deque[float] = deque(maxlen=10)
    while True:
        episode_reward = 0.0
        for step in range(1, 4):
            episode_reward += step
        rewards.append(episode_reward)
        running_reward = 0.05 * episode_reward + 0.95 * running_reward
        run.step_done(reward=running_reward)
        episode += 1
        if episode > 2:
            break


def last_loss_in_the_tail(run: Run) -> None:
    for epoch in run.epochs(2):
        for batch in run.batches(DATA):
            loss = evaluate(batch)
            run.step_done(loss=loss)
        print(epoch, loss)


class Trainer:
    """A training in a class, as people write it."""

    def __init__(self) -> None:
        self.best = 0.0
        self.history: list[float] = []
        self.memory: list[float] = []
        self.last = 0.0

    def remember(self, batch: float) -> None:
        self.memory.append(batch)

    def train(self, run: Run) -> None:
        for batch in run.batches(DATA):
            self.last = evaluate(batch)
            self.best = max(self.best, self.last)
            self.history.append(batch)
            self.remember(batch)
            run.step_done()


def in_a_class(run: Run) -> None:
    Trainer().train(run)


class Meter:
    """A step makes one anew, and assigns attributes of the same names as those of the trainer."""

    def __init__(self) -> None:
        self.best = 0.0


def beside_an_object_with_the_same_attribute(run: Run) -> None:
    trainer = Trainer()
    for batch in run.batches(DATA):
        meter = Meter()
        meter.last = batch
        trainer.best += batch
        trainer.last = meter.best
        run.step_done(loss=trainer.last)


def array_of_returns(run: Run) -> None:
    returns = np.zeros(3)
    for number, batch in enumerate(run.batches(DATA)):
        returns[number] = batch
        run.step_done()


def object_made_anew_of_itself(run: Run) -> None:
    tree = SimpleNamespace(value=0)
    for batch in run.batches(DATA):
        tree = SimpleNamespace(value=tree, batch=batch)
        run.step_done()


def left_behind_the_step(run: Run) -> None:
    agent = SimpleNamespace(bonus=0.0)
    for batch in run.batches(DATA):
        loss = batch + agent.bonus
        run.step_done(loss=loss)
        agent.bonus = 0.1 * loss


def given_to_entries(run: Run) -> None:
    run.state["sum"] = 0.0
    loss = rate = 1.0
    for batch in run.batches(DATA):
        run.state.setdefault("losses", []).append(loss)
        run.state["sum"] += rate
        rate, loss = rate / 2, evaluate(batch)
        run.step_done()


def closure_that_is_made_once(run: Run) -> None:
    best = 0.0

    def closure(value: float) -> float:
        nonlocal best
        best = max(best, value)
        return best

    for batch in run.batches(DATA):
        run.step_done(loss=closure(batch))


def last_inputs_of_a_closure(run: Run) -> None:
    closure = evaluate
    for batch in run.batches(DATA):
        before = closure()
        inputs = batch

        def closure() -> float:
            return inputs  # noqa: B023

        run.step_done(loss=before)


def function_of_an_object_replaced(run: Run) -> None:
    trainer = SimpleNamespace(loss=evaluate)
    for number, batch in enumerate(run.batches(DATA)):
        if number == 1:
            trainer.loss = another_loss
        run.step_done(loss=trainer.loss(batch))


def another_loss(loss: float) -> float:
    return 2 * loss


class Sums:
    def __init__(self) -> None:
        self.total, self.seen = 0.0, 0

    def fit(self, run: Run) -> None:
        for epoch in run.epochs(2):
            self.total = 0.0
            self.seen = -epoch
            for batch in run.batches(DATA):
                self.total += batch
                self.seen += 1
                run.step_done(loss=self.total)


def sums_that_an_epoch_sets_to_zero(run: Run) -> None:
    Sums().fit(run)


@pytest.mark.parametrize(
    ("loop", "named"),
    [
        (closure_that_is_made_once, {"best"}),
        (sums_that_an_epoch_sets_to_zero, {"self.total", "self.seen"}),
        (last_inputs_of_a_closure, {"closure", "inputs"}),
        (function_of_an_object_replaced, {"trainer.loss"}),
        (best_of_epochs, {"best", "patience"}),
        (made_behind_the_step, {"rate"}),
        (sum_of_an_epoch, {"total_loss", "count"}),
        (lists_and_dicts, {"losses", "stats['best']", "seen"}),
        (running_reward, {"running_reward", "episode", "rewards"}),
        (last_loss_in_the_tail, {"loss"}),
        (in_a_class, {"self.best", "self.history", "self.memory"}),
        (beside_an_object_with_the_same_attribute, {"trainer.best"}),
        (array_of_returns, {"returns"}),
        (object_made_anew_of_itself, {"tree"}),
        (left_behind_the_step, {"agent.bonus"}),
        (given_to_entries, {"rate", "loss"}),
    ],
)
def test_carried_value_is_named(loop: Callable[[Run], None], named: set[str]) -> None:
    run = Run()

    loop(run)

    assert set(run.named) == named


def usual_temporaries(run: Run) -> None:
    start, template = time.time(), "epoch {}"
    for epoch in run.epochs(2):
        begun = time.time()
        losses = []
        for step, batch in enumerate(run.batches(DATA)):
            inputs, labels = batch, batch
            loss = evaluate(inputs)
            gradients = [loss * weight for weight in (1, 2)]
            metrics = {"loss": loss}
            metrics["norm"] = sum(gradients) + labels
            logs = dict(metrics)
            logs.update(step=step)
            if step % 2 == 0:
                now = time.perf_counter()
                print(template.format(epoch), step, loss, now - start)
                start = now
            run.step_done(**metrics)
        values = [evaluate(each) for each in DATA]
        accuracy = 0.0
        for value in values:
            accuracy += value
        losses.append(accuracy)
        print(accuracy, len(losses), time.time() - begun)


def made_from_the_run(run: Run) -> None:
    epoch = run.epoch
    while epoch < 1:
        for batch in run.batches(DATA):
            step = run.step
            try:
                loss = evaluate(batch)
            except ValueError:
                continue
            run.step_done(loss=loss + step)
        run.end_epoch()
        epoch = run.epoch


def kept_in_the_state(run: Run) -> None:
    best, losses = run.state.setdefault("best", 0.0), run.state.setdefault("losses", [])
    rate = run.state["lr"] if run.step else 1.0
    for batch in run.batches(DATA):
        best = max(best, batch)
        run.state["best"] = best
        rate *= 0.5
        run.state["lr"] = rate
        losses.append(batch)
        run.step_done()


def kept_in_the_state_by_another_name(run: Run) -> None:
    state = run.state
    state["best"] = 0.0
    for _epoch in run.epochs(2):
        for batch in run.batches(DATA):
            run.step_done(loss=batch)
        if evaluate() > state["best"]:
            state["best"] = evaluate()


def read_behind_the_step(run: Run) -> None:
    meter = SimpleNamespace(loss=0.0, shown=0.0)
    for _epoch in run.epochs(2):
        for batch in run.batches(DATA):
            meter.loss = evaluate(batch)
            run.step_done(loss=meter.loss)
            meter.shown = 2 * meter.loss


def closures_of_a_pass(run: Run) -> None:
    for batch in run.batches(DATA):
        inputs = evaluate(batch)

        def closure(scale: float = 2.0) -> float:
            return inputs * scale  # noqa: B023

        loss_of = lambda: inputs + batch  # noqa: B023, E731
        run.step_done(loss=closure() + loss_of() + max(map(lambda part: part * inputs, DATA)))  # noqa: C417


def functions_of_a_pass_as_attributes(run: Run) -> None:
    trainer = SimpleNamespace(loss=evaluate)
    for batch in run.batches(DATA):
        trainer.closure = lambda: trainer.loss(batch)  # noqa: B023
        run.step_done(loss=trainer.closure())


@pytest.mark.parametrize(
    "loop",
    [
        usual_temporaries,
        made_from_the_run,
        kept_in_the_state,
        kept_in_the_state_by_another_name,
        read_behind_the_step,
        closures_of_a_pass,
        functions_of_a_pass_as_attributes,
    ],
)
def test_values_made_anew_or_kept_in_state_are_not_named(loop: Callable[[Run], None]) -> None:
    run = Run()

    loop(run)

    assert run.named == []


@dataclass
class Progress:
    """Whose own `__init__` is code without a file."""

    best: float = 0.0


def record(run: Run) -> None:
    progress = Progress()
    for batch in run.batches(DATA):
        setattr(progress, "best", batch)  # noqa: B010
        run.step_done()


def test_place_of_what_no_line_assigns_is_not_that_of_code_without_a_file() -> None:
    run = Run()

    record(run)

    assert run.places == ["progress.best (changed by a step)"]


def test_name_in_leave_out_is_not_named() -> None:
    run = Run("best", "patience")

    best_of_epochs(run)

    assert run.named == []


def test_place_of_a_carried_value_is_named() -> None:
    run = Run()

    sum_of_an_epoch(run)

    assert all("test_step_watch.py:" in place for place in run.places)


def test_value_of_a_librarys_loop_is_not_to_be_put_into_the_state(tmp_path: Path) -> None:
    source = tmp_path / "site-packages" / "trainer.py"
    source.parent.mkdir()
    source.write_text(
        "def fit(step):\n    batch_count = 0\n    for number in range(2):\n        step()\n        batch_count += 1\n"
    )
    library: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), library)
    found: list[Finding] = []

    def step() -> None:
        watch = StepWatch(lambda kept: None, (), RunState())
        found.extend(watch.look(1, 0, sys._getframe(1)))
        watch.close()

    library["fit"](step)

    assert found[0].name == "batch_count (trainer.py:5)"
    assert 'leave_out=["batch_count"]' in found[0].remedy
    assert "run.state" not in found[0].remedy


rate = 1.0


def warm_up() -> None:
    global rate
    rate *= 0.5


def global_number(run: Run) -> None:
    for _batch in run.batches(DATA):
        warm_up()
        run.step_done(rate=rate)


class Annealed:
    """A model whose weight of a term is changed by a method."""

    def __init__(self) -> None:
        self.beta = 1.0
        self.output = 0.0
        self._seen = 0

    def anneal(self) -> None:
        self.beta *= 0.9
        self._seen += 1

    def train(self, batch: float) -> float:
        self.output = batch
        return self.output * self.beta


def number_in_an_object(run: Run) -> None:
    model = Annealed()
    for batch in run.batches(DATA):
        loss = model.train(batch)
        model.anneal()
        run.step_done(loss=loss)


class Average:
    """An average of weights by name, as people write it."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self.shadow = {name: value.copy() for name, value in weights.items()}

    def update(self, weights: dict[str, Any]) -> None:
        for name, value in weights.items():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * value


def average_of_weights(run: Run) -> None:
    weights = {"w": np.ones(4)}
    run.state["weights"] = weights
    average = Average(weights)
    for batch in run.batches(DATA):
        weights["w"] -= 0.1 * batch
        average.update(weights)
        run.step_done()


Transition = namedtuple("Transition", ["state", "reward"])


class Memory:
    """A replay memory."""

    def __init__(self) -> None:
        self.memory: deque[Transition] = deque(maxlen=100)

    def push(self, *parts: Any) -> None:
        self.memory.append(Transition(*parts))


class Agent:
    """An agent that explores less and less."""

    def __init__(self) -> None:
        self.replay = Memory()
        self.steps_done = 0

    def act(self) -> float:
        self.steps_done += 1
        return 1.0 / self.steps_done


def agent_with_a_memory(run: Run) -> None:
    agent = Agent()
    while run.step < 5:
        action = agent.act()
        agent.replay.push(np.zeros(2), action)
        run.step_done()


class Trainer2:
    """Reads its data from an endless iterator."""

    def __init__(self) -> None:
        self.data = itertools.cycle(DATA)
        self.generated = self._batches()

    def _batches(self) -> Iterator[float]:
        while True:
            yield from DATA

    def step(self) -> float:
        return next(self.data) + next(self.generated)


def endless_iterators(run: Run) -> None:
    trainer = Trainer2()
    while run.step < 5:
        run.step_done(loss=trainer.step())


class EarlyStopping:
    """Keeps the best weights, and counts how long nothing was better."""

    def __init__(self) -> None:
        self.best_score: float | None = None
        self.counter = 0
        self.best_weights: Any = None

    def __call__(self, score: float, weights: Any) -> bool:
        if self.best_score is None or score > self.best_score:
            self.best_score, self.counter = score, 0
            self.best_weights = weights.copy()
        else:
            self.counter += 1
        return self.counter > 2


def early_stopping(run: Run) -> None:
    stopping, weights = EarlyStopping(), np.zeros(2)
    run.state["weights"] = weights
    for epoch in run.epochs(3):
        for batch in run.batches(DATA):
            weights += batch
            run.step_done()
        if stopping(-abs(epoch - 1), weights):
            break


class Counted:
    """Counts in its class."""

    total = 0

    def add(self) -> None:
        Counted.total += 1


def counter_of_a_class(run: Run) -> None:
    counted = Counted()
    for _batch in run.batches(DATA):
        counted.add()
        run.step_done()


def schedule() -> Callable[[], float]:
    rate = 1.0

    def decay() -> float:
        nonlocal rate
        rate *= 0.5
        return rate

    return decay


def number_in_a_closure(run: Run) -> None:
    decay = schedule()
    for _batch in run.batches(DATA):
        run.step_done(rate=decay())


class Rated:
    """Its rate is set in several ways."""

    def __init__(self) -> None:
        self.rate, self.previous = 0.1, 0.0

    def begin(self, epoch: int) -> None:
        self.rate = 0.1 * 0.9**epoch

    def decay(self) -> None:
        self.rate *= 0.9

    def use(self) -> float:
        return self.rate + self.previous

    def begin_once(self, epoch: int) -> None:
        if epoch == 1:
            self.rate = 0.05


def set_by_a_method_in_each_head(run: Run) -> None:
    model = Rated()
    for epoch in run.epochs(3):
        model.begin(epoch)
        for _batch in run.batches(DATA):
            run.step_done(loss=model.use())


def changed_by_a_method_in_each_head(run: Run) -> None:
    model = Rated()
    for epoch in run.epochs(3):
        model.decay() if epoch else None
        for _batch in run.batches(DATA):
            run.step_done(loss=model.use())


def set_by_a_method_in_one_head(run: Run) -> None:
    model = Rated()
    for epoch in run.epochs(3):
        model.begin_once(epoch)
        for _batch in run.batches(DATA):
            run.step_done(loss=model.use())


def read_before_the_step_assigns_it(run: Run) -> None:
    model = Rated()
    for batch in run.batches(DATA):
        loss = model.use()
        model.previous = batch
        run.step_done(loss=loss)


def read_behind_what_the_step_assigns(run: Run) -> None:
    model = Rated()
    for batch in run.batches(DATA):
        model.previous = batch
        run.step_done(loss=model.use())


@pytest.mark.parametrize(
    ("loop", "named"),
    [
        (set_by_a_method_in_each_head, set()),
        (changed_by_a_method_in_each_head, {"model.rate"}),
        (set_by_a_method_in_one_head, {"model.rate"}),
        (read_before_the_step_assigns_it, {"model.previous"}),
        (read_behind_what_the_step_assigns, set()),
        (global_number, {"rate"}),
        (number_in_an_object, {"model.beta", "model._seen"}),
        (average_of_weights, {"average.shadow"}),
        (agent_with_a_memory, {"agent.replay.memory", "agent.steps_done"}),
        (endless_iterators, {"trainer.data", "trainer.generated"}),
        (early_stopping, {"stopping.best_score", "stopping.best_weights"}),
        (counter_of_a_class, {"Counted.total"}),
        (number_in_a_closure, {"rate"}),
    ],
)
def test_what_changes_anywhere_and_nobody_keeps_is_named_by_its_path(
    loop: Callable[[Run], None], named: set[str]
) -> None:
    run = Run()

    loop(run)

    assert set(run.named) == named


class Reader:
    """Reads its own attribute by its name."""

    def step(self) -> float:
        self.count = getattr(self, "count", 0) + 1
        return 1.0 / self.count


def attribute_read_by_name(run: Run) -> None:
    reader = Reader()
    for _batch in run.batches(DATA):
        run.step_done(loss=reader.step())


def test_attribute_that_getattr_reads_before_it_is_assigned_is_named() -> None:
    run = Run()

    attribute_read_by_name(run)

    assert run.named == ["reader.count"]


class LateDecay:
    """A trainer whose rate begins to fall late."""

    def __init__(self, begins: int) -> None:
        self.rate = 1.0
        self._begins = begins

    def update(self, count: int) -> None:
        if count >= self._begins:
            self.rate *= 0.5


def late_in_epochs(run: Run) -> None:
    trainer = LateDecay(begins=8)
    for epoch in run.epochs(10):
        for batch in run.batches(DATA):
            run.step_done(loss=batch * trainer.rate)
        trainer.update(epoch)


def late_in_steps(run: Run) -> None:
    trainer = LateDecay(begins=2000)
    while run.step < 3100:
        run.step_done(loss=trainer.rate)
        trainer.update(run.step)


@pytest.mark.parametrize("loop", [late_in_epochs, late_in_steps])
def test_what_begins_to_change_late_is_named_then(loop: Callable[[Run], None]) -> None:
    run = Run()

    loop(run)

    assert run.named == ["trainer.rate"]


class Smoothed:
    """Begins as a copy, by a method of its own."""

    def __init__(self) -> None:
        self.value = 0.0

    def copy(self, value: float) -> None:
        self.value = value

    def add(self, value: float) -> None:
        self.value = 0.9 * self.value + 0.1 * value


def test_average_that_begins_as_a_copy_is_named_once_a_step_reads_it() -> None:
    average, run = Smoothed(), Run()

    while run.step < 120:
        (average.add if run.step > 20 else average.copy)(float(run.step))
        run.step_done(loss=average.value)

    assert run.named == ["average.value"]


@dataclass
class Link:
    """One of a chain."""

    number: float
    following: "Link | None"


class Chain:
    """Puts a new object around what it had."""

    def __init__(self) -> None:
        self.top: Link | None = None

    def push(self, number: float) -> float:
        self.top = Link(number, self.top)
        total, link = 0.0, self.top
        while link is not None:
            total, link = total + link.number, link.following
        return total


class Shows:
    """Makes a new object in each step, whatever it had."""

    def __init__(self) -> None:
        self.result = Link(0.0, None)

    def show(self, number: float) -> float:
        self.result = Link(number, None)
        return self.result.number


def test_new_object_around_the_one_before_is_named_and_one_in_its_place_is_not() -> None:
    run, chain, shows = Run(), Chain(), Shows()

    for batch in run.batches(DATA):
        run.step_done(loss=chain.push(batch) + shows.show(batch))

    assert run.named == ["chain.top.number"]


class ArrayElsewhere:
    """An array whose value this process can't read, as JAX's over several processes; or one that was used up."""

    dtype, shape = np.dtype("float32"), (2,)

    def __init__(self, *, is_deleted: bool) -> None:
        self.is_deleted = lambda: is_deleted

    def __array__(self, *given: Any) -> Any:
        raise RuntimeError("it spans devices of other processes")


def test_array_that_cannot_be_read_is_told_of_and_one_that_was_used_up_is_not() -> None:
    run = Run()
    weights, inside = ArrayElsewhere(is_deleted=False), [ArrayElsewhere(is_deleted=False)]
    used_up = ArrayElsewhere(is_deleted=True)

    for _batch in run.batches(DATA):
        evaluate(len([weights, inside, used_up]))
        run.step_done()

    assert run._watch is not None
    assert list(run._watch.unreadable) == ["inside[0]", "weights"]
    assert run.named == []


def test_sum_that_a_clock_of_a_young_host_has_shown_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that began with the host shows what a sum of losses may be."""
    monkeypatch.setattr(step_watch, "PROCESS_BEGAN_AT", time.monotonic() - 1000)
    run, sums = Run(), SimpleNamespace(total=time.monotonic() - 500.25, at=time.monotonic(), before=time.monotonic())

    total = time.monotonic() - 500.25
    for _epoch in run.epochs(1):
        for batch in run.batches(DATA):
            sums.total += batch / 10
            total += 300 * batch
            sums.before, sums.at = sums.at, time.monotonic()
            run.step_done()

    assert set(run.named) == {"total", "sums.total"}


class Scheduled:
    rate, decay, name = 0.01, 0.5, "plain"

    def __init__(self) -> None:
        self.name = "own"


def test_attribute_of_the_import_system_is_not_taken_for_the_loops(tmp_path: Path) -> None:
    """A step that imports something makes a lock, whose attribute `count` is assigned before it is read."""
    run, agent = Run(), SimpleNamespace(meter=SimpleNamespace(count=0))
    for number in range(3):
        (tmp_path / f"made_for_a_step_{number}.py").touch()
    sys.path.insert(0, str(tmp_path))
    try:
        for number in range(3):
            __import__(f"made_for_a_step_{number}")
            agent.meter.count += 1
            run.step_done(count=agent.meter.count)
    finally:
        sys.path.remove(str(tmp_path))

    assert "agent.meter.count" in run.named


def test_attribute_that_an_object_had_from_its_class_until_a_step_set_it_is_named() -> None:
    run, schedule = Run(), Scheduled()

    for epoch in run.epochs(8):
        for batch in run.batches(DATA):
            evaluate(batch * schedule.rate * schedule.decay)
            run.step_done()
        if epoch == 5:
            schedule.rate = 0.001

    assert run.named == ["schedule.rate"]


def test_attribute_of_a_class_that_changes_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduled, "decay", 0.5)
    run, schedule = Run(), Scheduled()

    for batch in run.batches(DATA):
        evaluate(batch * schedule.rate * schedule.decay)
        Scheduled.decay *= 0.9
        run.step_done()

    assert run.named == ["Scheduled.decay"]


@dataclass
class Part:
    """Something that has a state of its own, which is kept elsewhere."""

    factor: float


class Pair:
    def __init__(self) -> None:
        self.first, self.second = Part(1.0), Part(2.0)
        self.parts = [self.first, self.second]
        self.chosen = self.first

    def step(self, number: int) -> float:
        self.chosen = self.parts[number % 2]
        self.fresh = Part(3.0)
        return self.chosen.factor + self.fresh.factor + self.first.factor


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda pair: setattr(pair, "first", pair.second), "pair.first"),
        (lambda pair: pair.__dict__.update(first=pair.second, second=pair.first), "pair.first"),
        (lambda pair: pair.parts.reverse(), "pair.parts"),
    ],
    ids=["assigned", "swapped", "reversed"],
)
def test_objects_that_change_their_places_are_named(change: Callable[[Pair], None], expected: str) -> None:
    run, pair = Run(), Pair()

    for epoch in run.epochs(3):
        for number, _ in enumerate(DATA):
            pair.step(number)
            run.step_done()
        if epoch == 1:
            change(pair)

    assert expected in run.named
    assert not {"pair.chosen", "pair.fresh"} & {*run.named}


class Rate:
    def __init__(self) -> None:
        self.value = 1.0


def train_epoch(run: Run, rate: float, widths: list[float], epoch: int) -> None:
    half = [rate / 2]
    for batch in run.batches(DATA):
        run.step_done(loss=batch * rate * half[0] * widths[0] * epoch)


def epochs_that_give_another_rate(run: Run) -> None:
    for number in run.epochs(3):
        train_epoch(run, 1 / (number + 1), [number], epoch=number)


def rate_of_an_object(run: Run) -> None:
    rate = Rate()
    for number in run.epochs(3):
        train_epoch(run, rate.value, [rate.value], number)
        rate.value /= 2


@pytest.mark.parametrize(
    ("loop", "named"), [(epochs_that_give_another_rate, set()), (rate_of_an_object, {"rate.value"})]
)
def test_what_an_epoch_gives_to_the_function_with_its_batches_is_watched_where_it_comes_from(
    loop: Callable[[Run], None], named: set[str]
) -> None:
    run = Run(entered=Entered(loop.__code__, loop.__code__.co_firstlineno))

    loop(run)

    assert set(run.named) == named


def halve(value: float) -> float:
    return value / 2


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (math.sin, lambda: math.cos),
        (np.sin, lambda: np.cos),
        (Rate, lambda: Part),
        (functools.partial(max, 1), lambda: functools.partial(max, 2)),
        (functools.partial(halve, 1), lambda: functools.partial(halve, value=2)),
        ([halve, evaluate], lambda: [evaluate, halve]),
        ({"loss": halve}, lambda: {"loss": evaluate}),
    ],
    ids=["builtin", "ufunc", "class", "partial", "partial_of_a_function", "list", "dict"],
)
def test_another_function_is_named(first: Any, later: Callable[[], Any]) -> None:
    run, trainer = Run(), SimpleNamespace(loss=first, made=None)
    del first

    for epoch in run.epochs(3):
        for batch in DATA:
            trainer.made = functools.partial(halve, batch)
            run.step_done(loss=(trainer.loss, trainer.made()))
        if epoch == 1:
            trainer.loss = later()

    assert {name.removesuffix(".args") for name in run.named} == {"trainer.loss"}


def test_a_method_of_another_object_is_named() -> None:
    run, pairs = Run(), [Pair(), Pair()]
    trainer = SimpleNamespace(step=pairs[0].step, pairs=pairs)

    for epoch in run.epochs(3):
        for _ in DATA:
            trainer.step(0)
            run.step_done()
        if epoch == 1:
            trainer.step = trainer.pairs[1].step

    assert "trainer.step" in run.named


class Pupil:
    def __init__(self, name: str) -> None:
        self.name = name
        self.parts = [SimpleNamespace(kind=name)]
        self.loss, self.count = 0.0, 0

    def train(self, run: Run, *, counts: bool = False) -> None:
        for batch in run.batches(DATA):
            self.loss = batch * len(self.name)
            if counts:
                self.count += 1
            run.step_done(loss=self.loss + self.count)


@pytest.mark.parametrize(("counts", "named"), [(False, set()), (True, {"count"})])
def test_one_object_after_another_under_one_name_is_no_change(counts: bool, named: set[str]) -> None:
    code = test_one_object_after_another_under_one_name_is_no_change.__code__
    run, pupils = Run(entered=Entered(code, code.co_firstlineno)), [Pupil("a"), Pupil("bb")]
    for epoch in run.epochs(4):
        pupils[epoch % 2].train(run, counts=counts)

    assert {name.rpartition(".")[2] for name in run.named} == named


def test_the_change_of_an_object_is_named_though_another_has_its_name_now() -> None:
    run, agents = Run(), [Pupil("a"), Pupil("bb")]
    for number in range(4):
        agent = agents[number % 2]
        agents[1 - number % 2].count += 1
        run.step_done(loss=float(agent.count))

    assert any(name.endswith(".count") for name in run.named)


def counted_before_the_step(run: Run) -> None:
    count = 0
    while count < 3:
        count += 1
        run.step_done(loss=float(count))


def counted_behind_the_step(run: Run) -> None:
    count = 1
    while count < 4:
        run.step_done(loss=float(count))
        count += 1


@pytest.mark.parametrize(
    ("loop", "line"),
    [(counted_before_the_step, "count = run.step"), (counted_behind_the_step, "count = run.step + 1")],
)
def test_what_counts_the_steps_is_told_its_line(loop: Callable[[Run], None], line: str) -> None:
    run = Run()
    loop(run)

    assert run.named == ["count"]
    assert f"write {line}, or" in run.remedies[0]


def test_what_counts_on_from_the_run_is_not_named() -> None:
    run = Run()
    count = run.step
    while count < 3:
        count += 1
        run.step_done(loss=float(count))

    assert run.named == []


def test_a_state_of_another_object_keeps_nothing() -> None:
    run, trainer = Run(), SimpleNamespace(state={"step": 0})
    best = 0.0
    for batch in run.batches(DATA):
        print(trainer.state, best)
        best = max(best, batch)
        run.step_done(loss=best)

    assert run.named == ["best"]
