"""The job of bench.preempt: trains with evaluations and stalls of its data, and writes down what it does when.

    python -m bench.preempt_job worker|handler|plain FOLDER STORY

`worker`: TensorFlow with worker.Run. `handler`: the same training with TensorFlow's PreemptionCheckpointHandler and a
save every so many steps. `plain`: no TensorFlow, and the control pipe spoken by examples/plain.py. GRACE_S: the handler
is told that so many seconds are left when SIGTERM comes. Each line of STORY: monotonic seconds, what, number.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

STEP_S = 0.02
SAVE_EVERY = 150
EVALUATE_EVERY, EVALUATION_S = 70, 1.0
STALL_EVERY, STALL_S = 90, 1.0
WIDTH, LAYERS = 768, 4  # with Adam 28 MB of state


class Story:
    """Records events with their times, one line each, written at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(self, what: str, number: int = 0) -> None:
        os.write(self._file, f"{time.monotonic():.6f} {what} {number}\n".encode())


def between_steps(story: Story, step: int) -> None:
    """Does what training does besides steps, after step `step`."""
    if step % EVALUATE_EVERY == 0:
        story.tell("evaluation", step)
        time.sleep(EVALUATION_S)
    if step % STALL_EVERY == 0:
        story.tell("stall", step)
        time.sleep(STALL_S)
    if (step + 1) % SAVE_EVERY == 0:
        story.tell("save", step + 1)


def built() -> tuple[Any, Any]:
    """The objects that a checkpoint tracks, and the step function."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    layers = [tf.keras.Input((WIDTH,)), *(tf.keras.layers.Dense(WIDTH) for _ in range(LAYERS))]
    model, optimizer = tf.keras.Sequential(layers), tf.keras.optimizers.Adam(1e-4)
    optimizer.build(model.trainable_variables)
    inputs = tf.random.normal([16, WIDTH])

    @tf.function
    def update() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def step() -> Any:
        began = time.monotonic()
        loss = update().numpy()
        time.sleep(max(0.0, began + STEP_S - time.monotonic()))
        return loss

    return tf.train.Checkpoint(model=model, optimizer=optimizer), step


def with_worker(story: Story) -> None:
    import worker

    tracked, train = built()
    with worker.Run(tracked, total_steps=1_000_000) as run:
        story.tell("tracing")
        while run.step < 1_000_000:
            loss = train()
            story.tell("step", run.step + 1)
            run.step_done(loss=loss)
            between_steps(story, run.step)


def with_handler(folder: Path, story: Story) -> None:
    import tensorflow as tf

    tracked, train = built()
    manager = tf.train.CheckpointManager(tracked, str(folder), max_to_keep=2)
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(
        None,
        manager,
        termination_config=tf.distribute.experimental.TerminationConfig(
            grace_period=int(os.environ["GRACE_S"]), exit_fn=lambda: os._exit(0)
        ),
    )
    step = 0
    story.tell("tracing")
    while True:
        train()
        step += 1
        story.tell("step", step)
        handler.save_checkpoint_if_preempted(checkpoint_number=step)
        if step % SAVE_EVERY == 0:
            manager.save(checkpoint_number=step)
        between_steps(story, step)


def with_plain(folder: Path, story: Story) -> None:
    from examples import plain

    daemon = plain.Daemon()
    daemon.send_message("hello", protocol=1, pid=os.getpid(), version="plain")
    while not any(message["type"] == "go" for message in daemon.receive_messages(60.0)):
        pass
    folder.mkdir(parents=True, exist_ok=True)
    network, step = plain.Network(), 0
    daemon.send_message("restored", step=0, checkpoint=None, restore_s=0.0, total_steps=None, unmatched=[])
    story.tell("tracing")
    told_at, told_step = time.monotonic(), 0
    while True:
        time.sleep(STEP_S)
        step += 1
        story.tell("step", step)
        if (now := time.monotonic()) - told_at > plain.PROGRESS_S or step == 1:
            daemon.send_message("progress", step=step, step_s=(now - told_at) / (step - told_step), metrics={})
            told_at, told_step = now, step
        flushes = daemon.receive_messages(0.0)
        if flushes or step % SAVE_EVERY == 0:
            plain.save(daemon, folder, network, step, [flush["id"] for flush in flushes])
        if any(flush["then"] == "stop" for flush in flushes):
            sys.exit(143)
        between_steps(story, step)


def main() -> None:
    kind, folder, story = sys.argv[1], Path(sys.argv[2]), Story(Path(sys.argv[3]))
    story.tell("import")
    if kind == "worker":
        with_worker(story)
    elif kind == "handler":
        with_handler(folder, story)
    else:
        with_plain(folder, story)


if __name__ == "__main__":
    main()
