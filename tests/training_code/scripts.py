"""The scripts, what is in each that people write, and where it is killed."""

from dataclasses import dataclass

from tests.training_code.rig import Strike
from tests.training_code.strike import CHECKPOINT, SAVE

FIRST_STEP: Strike = (r"run\.step_done", 1)
IN_A_SAVE: Strike = (SAVE, 2)


@dataclass(frozen=True)
class Script:
    """`places`: where its attempts die, one after the other; the second one dies in a save, whatever the script."""

    name: str
    places: tuple[Strike, ...]
    package: str | None = None
    """From which the script has its training code, besides the framework."""

    @property
    def strikes(self) -> tuple[Strike, ...]:
        """Where each attempt but the last dies."""
        return self.places[0], IN_A_SAVE, *self.places[1:]


SCRIPTS = (
    Script(
        "tf_custom_loop",  # ds.shuffle without a seed, metrics reset at an epoch's head, a test pass in its tail
        (FIRST_STEP, (r"test_step\(test_images", 2), (r"run\.step_done", 8), (r"print\(", 1)),
    ),
    Script(
        # a distributed dataset on two replicas, sums in Python, its own checkpoint.save in the tail
        "tf_distributed_loop",
        (FIRST_STEP, (r"checkpoint\.save\(", 1), (r"run\.step_done", 5), (r"test_accuracy\.reset_state", 1)),
    ),
    Script(
        "tf_fit_callbacks",  # fit with cache and shuffle, TensorBoard, ModelCheckpoint and LearningRateScheduler
        ((CHECKPOINT, 1), (r"Learning rate for epoch", 1), (CHECKPOINT, 50)),
    ),
    Script(
        "tf_dcgan",  # tf.random.normal inside the compiled step, two optimizers, images in the tail
        (FIRST_STEP, (r"generate_and_save_images\(generator, epoch", 1), (r"run\.step_done", 7)),
    ),
    Script(
        # a reinforcement loop without a dataset, tf.random.categorical, NumPy's generator, a running reward
        "tf_actor_critic",
        (FIRST_STEP, (r"run\.step_done", 12), (r"huber_loss\(values", 20)),
    ),
    Script(
        "keras_vae",  # fit on an array with its default shuffle, a sampling layer, a custom train_step
        ((CHECKPOINT, 1), (CHECKPOINT, 15), (CHECKPOINT, 22)),
    ),
    Script(
        "keras_gan",  # fit with two optimizers, tf.random.uniform in train_step, a callback that draws
        ((CHECKPOINT, 3), (r"mean pixel", 1), (CHECKPOINT, 30)),
    ),
    Script(
        "keras_transformer",  # fit on arrays with validation data, dropout, subclassed layers
        ((CHECKPOINT, 1), (CHECKPOINT, 20), (CHECKPOINT, 33)),
    ),
    Script(
        "keras_two_inputs",  # fit on dicts of arrays with several inputs and outputs, validation_split
        ((CHECKPOINT, 2), (CHECKPOINT, 10), (CHECKPOINT, 17)),
    ),
    Script(
        # an optimizer of its own, accumulated gradients, a rate that falls in the tail, early stopping by hand
        "keras_custom_optimizer",
        (
            FIRST_STEP,
            (r"optimizer\.learning_rate = ", 1),
            (r"apply_accumulated\(\)$", 4),
            (r"run\.state..wait.. = 0", 1),
        ),
    ),
    Script(
        # a TF1 session with a Saver of its own, get_checkpoint_state, a rate that decays, a SavedModel at the end
        "tf1_saver",
        (FIRST_STEP, (r"saver\.save\(", 1), (r"run\.step_done", 30)),
    ),
    Script(
        # a DataLoader that shuffles, train() and test() by epoch, a scheduler that steps in the tail
        "torch_classifier",
        (FIRST_STEP, (r"scheduler\.step\(\)", 1), (r"run\.step_done", 9), (r"pred = output", 1)),
    ),
    Script(
        "torch_gan",  # two networks and optimizers, noise from the global generator, lists of losses
        (FIRST_STEP, (r"run\.step_done", 20), (r"img_list.*append", 2)),
    ),
    Script(
        "torch_ignite",  # Ignite's trainer, evaluator, metrics and handlers: the loop over the batches is the package's
        (FIRST_STEP, (r"scheduler\.step\(", 1), (r"run\.step_done", 12), (r"evaluator\.run\(", 1)),
        package="ignite",
    ),
    Script(
        # accelerate's prepare and accumulate, a weighted sampler, a last group of three batches in each epoch
        "torch_accelerate",
        (FIRST_STEP, (r"accelerator\.backward\(", 7), (r"run\.step_done", 5), (r"gather_for_metrics", 1)),
        package="accelerate",
    ),
    Script(
        # KerasRS' retrieval model with a loss of its own, cache behind a shuffle, validation every second epoch
        "keras_recommender",
        ((CHECKPOINT, 1), (CHECKPOINT, 15), (CHECKPOINT, 24)),
        package="keras_rs",
    ),
)
