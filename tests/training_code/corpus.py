"""A corpus of training scripts in the shapes of tutorials and repositories, and what has to happen to each.

`exact/`: made resumable as the documentation says. However often they are killed they end with the same bits, and the
worker says nothing that it would not say of every exact training. `minimal/`: left as their authors would write them,
with no more than a run around the loop and `step_done` in it. Each loses something at a restart, and the worker says
what, or refuses to train, before the third step.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.training_code.starter import Framework

HERE = Path(__file__).resolve().parent
EXACT_SCRIPTS = HERE / "exact"
MINIMAL_SCRIPTS = HERE / "minimal"
_OF_STEPKEEPER = re.compile(r"\b(worker|run|leave_out)\b")


class Outcome(StrEnum):
    """What happens to a script."""

    EXACT = "exact"
    NAMED = "named"
    REFUSED = "refused"


@dataclass(frozen=True)
class Entry:
    """`name`: of its file. `pattern`: what is in it, or what makes the minimal script of its name exact. `said`: what
    the worker's words have to contain."""

    name: str
    framework: Framework
    pattern: str
    outcome: Outcome
    said: str = ""
    before: int = 3
    """The step before whose end it is killed, at the latest. A loss at an epoch's end is known one step after it."""
    is_fit: bool = False
    """Whether `fit` has the loop, so that the script has no line for a step."""

    @property
    def script(self) -> Path:
        """Its file."""
        return (EXACT_SCRIPTS if self.outcome == Outcome.EXACT else MINIMAL_SCRIPTS) / f"{self.name}.py"

    @property
    def lines(self) -> int:
        """How many of its lines mention stepkeeper, the run or what belongs to it."""
        return sum(1 for line in self.script.read_text().splitlines() if _OF_STEPKEEPER.search(line))


def id_of(entry: Entry) -> str:
    """Its name in a list of tests."""
    return f"{entry.outcome}-{entry.name}"


def _exact(name: str, pattern: str, *, is_fit: bool = False) -> Entry:
    return Entry(name, _framework_of(name), pattern, Outcome.EXACT, is_fit=is_fit)


def _named(name: str, pattern: str, said: str, *, before: int = 3, is_fit: bool = False) -> Entry:
    return Entry(name, _framework_of(name), pattern, Outcome.NAMED, said, before, is_fit)


def _refused(name: str, pattern: str, said: str) -> Entry:
    return Entry(name, _framework_of(name), pattern, Outcome.REFUSED, said)


_FRAMEWORKS = {
    "np": Framework.NUMPY,
    "torch": Framework.TORCH,
    "jax": Framework.JAX,
    "tf": Framework.TENSORFLOW,
    "keras": Framework.TENSORFLOW,
}


def _framework_of(name: str) -> Framework:
    return _FRAMEWORKS[name.partition("_")[0]]


MINIMAL = (
    _refused("torch_mnist_argparse", "`for epoch in range(1, args.epochs + 1)` around a function with the batches",
             "run.epochs(args.epochs)"),
    _refused("torch_dataclass_config", "`for epoch in range(cfg.train.epochs)`, nested dataclasses",
             "run.epochs(cfg.train.epochs)"),
    _refused("tf_epoch_loop", "`for epoch in range(EPOCHS)`, `enumerate(dataset)` for printing", "run.epochs(EPOCHS)"),
    _named("np_softmax_argparse", "`for epoch in range(args.epochs)`, slices by index, files of its own",
           "run.epochs(args.epochs)"),
    _named("np_while_epochs", "`while n < args.epochs` with a counter of its own", "n ("),
    _named("torch_wgan_critic", "`enumerate(loader)` and `i % n_critic`: a GAN's generator every third batch",
           "the number i of"),
    _refused("np_permutation", "an index loop over a permutation that each epoch draws",
             "run.range(0, len(ratings), batch)"),
    _named("np_counter", "`while True` with a counter of its own", "n_iter = run.step"),
    _named("np_numbered_steps", "the same with `step_done(epoch=, batch=)`, from the first slice on", "start"),
    _refused("torch_randperm", "`torch.randperm` at the head of an epoch, slices of it",
             "run.range(0, X.size()[0], batch_size)"),
    _named("np_qlearning", "episodes with one `step_done`, `epsilon` falls", "epsilon"),
    _named("np_sarsa_steps", "episodes with a `step_done` for each action", "state"),
    _named("np_line_reader", "a file that is read round and round, by `readline` and `seek(0)`", "reader.file"),
    _named("np_gridworld_observation", "an environment whose `reset` gives what is put into `run.state`",
           "env.position"),
    _named("np_rbm_pcd", "an array of an object that `write` forgets: a persistent chain", "rbm.chain"),
    _named("np_annealing", "`temperature *= 0.93`, the best solution so far", "temperature"),
    _named("np_average_meter", "the AverageMeter class", "losses"),
    _named("torch_vae_anneal", "`model.anneal()`: a KL weight that a method changes", "model.kl_weight"),
    _named("torch_global_lr", "`global lr` in a warm-up function", "lr"),
    _named("torch_noam_warmup", "a warm-up class that counts its steps (NoamOpt)", "model_opt._step"),
    _named("keras_callback_beta", "a callback that changes `self.model.beta` during `fit`", "beta", is_fit=True),
    _named("torch_ema", "an EMA class with a dict of tensors", "ema.shadow"),
    _named("tf_ema", "the same with TensorFlow's tensors", "ema.shadow"),
    _named("torch_early_stopping", "the EarlyStopping class: counter, best score, best weights", "early_stopping",
           before=4),
    _named("torch_dqn", "DQN: a replay memory of named tuples, `steps_done` for epsilon", "memory"),
    _named("torch_vqvae", "a VQ-VAE's codebook as plain tensors of a module", "codebook"),
    _named("torch_endless_loader", "`itertools.cycle(loader)` in a trainer object", "dl"),
    _named("torch_grad_accumulation", "gradients accumulated over several `step_done`", ".grad"),
    _named("torch_augmenting_dataset", "a generator that a Dataset owns", "rng"),
    _named("torch_word_language_model", "an LSTM's state that goes from batch to batch", "hidden"),
    _named("torch_moco_queue", "a queue of keys as a tensor beside the models, changed in place", "queue"),
    _named("torch_sac_temperature", "SAC's temperature: a tensor of its own with an optimizer", "log_alpha"),
    _named("torch_trained_image", "neural style: the image is what an optimizer trains", "image"),
    _named("torch_ppo_buffers", "PPO: storage that each iteration fills, environments, `next_obs`", "next_obs"),
    _named("torch_hf_trainer", "a trainer with arguments, a `self.state`, callbacks and a scheduler", "global_step"),
    _named("torch_reinforce", "`running_reward` of a REINFORCE loop", "running_reward"),
    _named("torch_lookahead", "a wrapper around an optimizer with slow weights", "optimizer"),
    _named("torch_sam_momentum", "SAM: an optimizer around another one", "optimizer.base_optimizer"),
    _named("torch_packed_stream", "a stream with a `state_dict`, and a count in a local name of `__iter__`",
           "__iter__.count"),
    _named("torch_image_pool", "CycleGAN's pool of earlier images", "fake_pool"),
    _named("torch_seq2seq_losses", "totals and lists of losses for prints and plots", "plot_loss_total"),
    _named("torch_style_closure", "`it = [0]` that LBFGS's closure counts up", "it"),
    _named("tf_dataset_per_epoch", "a dataset that each epoch builds, with a shuffle that has no seed", "shuffle"),
    _named("tf_range_epochs", "the same in `for epoch in range(run.epoch, n)`", "shuffle"),
    _named("tf_permuted_arrays", "a function from the epoch to its dataset that permutes arrays", "make_dataset"),
    _named("tf_curriculum", "a larger dataset after two epochs", "dataset ("),
    _named("torch_epoch_subset", "a random part of the examples in each epoch, in a DataLoader of its own", "loader ("),
    _named("keras_generator_expression", "`fit` with a generator expression that draws without a seed",
           "a generator without a seed", is_fit=True),
    _named("tf_ddpg_noise", "a ring buffer of arrays and correlated noise (DDPG)", "buffer"),
    _named("tf_char_rnn_states", "states of a GRU that the loop hands on", "states"),
    _named("tf_gan_list_mean", "lists of losses whose means an epoch prints", "gen_losses"),
    _named("tf_unfreezing", "fine-tuning in stages: `if epoch == 1: base.trainable = True`", "base.trainable",
           before=4),
    _named("keras_callback_class", "a callback that counts in attributes of its class", "Plateau.wait", is_fit=True),
    _named("np_settings_namespace", "`args.noise *= 0.5` in argparse's namespace", "args.noise", before=4),
    _named("np_state_set_in_with", "`run.state[\"best\"] = float(\"inf\")` between the `with` and the loop",
           "give the initial value to the run"),
    _named("tf_traced_weight", "`0.1 * epoch` in a `tf.function`, a constant there", "a constant in train_step",
           before=6),
    _named("torch_hook_noise", "a forward hook whose closure counts its calls", "calls"),
    _named("torch_parameter_velocity", "`parameter.velocity`: momentum in attributes of the parameters", "velocity"),
    _named("torch_sobol", "points of a `SobolEngine`", "sobol.num_generated"),
    _named("keras_metric_python", "a metric with a number of Python's", "worst.seen", is_fit=True),
    _named("jax_key_splitting", "JAX: `key, sub = split(key)` beside parameters in files", "key"),
    _named("jax_batchnorm_state", "JAX: running statistics that `write` forgets", "batch_stats"),
    _named("jax_optax_ema", "Optax: a moving average of parameters that `write`, with `pickle.dumps`, forgets",
           "state.ema"),
    _named("jax_named_tuple", "JAX: a named tuple of state, of which `write` takes two fields; beta anneals", "beta"),
    _named("jax_named_tuple_field", "JAX: the same with beta in `run.state`: fields that `write` forgets", "state.rng"),
    _named("jax_policy_baseline", "JAX: a running baseline as a number of the loop", "baseline"),
)  # fmt: skip

EXACT = (
    _exact("torch_mnist_argparse", "`run.epochs(args.epochs)`"),
    _exact("torch_dataclass_config", "`run.epochs(cfg.train.epochs)`"),
    _exact("tf_epoch_loop", "`enumerate(run.batches(dataset), run.batch)`"),
    _exact("np_softmax_argparse", "`run.range` over the starts of slices"),
    _exact("np_while_epochs", "`while run.step < args.epochs`"),
    _exact("torch_wgan_critic", "`i % n_critic` with `run.batch`"),
    _exact("np_permutation", "`run.order` over the permutation"),
    _exact("torch_randperm", "`run.order(torch.randperm(n), batch_size)`"),
    _exact("np_qlearning", "epsilon in `run.state`"),
    _exact("np_sarsa_steps", "state and action in `run.state`"),
    _exact("np_line_reader", "`tell` in `run.state`, `seek` behind the `with`"),
    _exact("np_gridworld_observation", "a `state_dict` of the environment"),
    _exact("np_rbm_pcd", "`write` saves the chain"),
    _exact("np_annealing", "both in `run.state`"),
    _exact("np_counter", "`n_iter = run.step`"),
    _exact("np_rollout_buffers", "arrays that each iteration fills before it reads them"),
    _exact("np_read_computes", "objects in a list, of which `read` computes what `write` does not take"),
    _exact("np_average_meter", "a `state_dict`, and a reset by each epoch"),
    _exact("np_evolution", "a population in an object's own files, settings as lists of lists"),
    _exact("np_counted_state", '`run.state["n"] += 1`, lists and dicts there, clocks'),
    _exact("torch_vae_anneal", "the weight as a buffer"),
    _exact("torch_global_lr", "the rate computed from `run.step`"),
    _exact("torch_noam_warmup", "a `state_dict`"),
    _exact("keras_callback_beta", "a weight of the model that the callback assigns", is_fit=True),
    _exact("torch_ema", "the dict in `state=`"),
    _exact("tf_ema", "the same"),
    _exact("torch_early_stopping", "a `state_dict`"),
    _exact("torch_dqn", "a memory with a `state_dict`, `steps_done` in `run.state`"),
    _exact("torch_vqvae", "buffers"),
    _exact("torch_endless_loader", "`run.batches` in the trainer object"),
    _exact("torch_grad_accumulation", "one `step_done` for each step of the optimizer"),
    _exact("torch_augmenting_dataset", "`generators=`"),
    _exact("torch_word_language_model", "the state in `run.state`"),
    _exact("torch_moco_queue", "the queue in `state=`"),
    _exact("torch_reinforce", "`run.state`"),
    _exact("torch_sac_temperature", "the tensor in `state=`"),
    _exact("torch_trained_image", "the image in `state=`"),
    _exact("torch_ppo_buffers", "`state_dict` of the environments, observations in `run.state`, storage as it is"),
    _exact("torch_hf_trainer", "a `state_dict` of trainer, state and callback"),
    _exact("torch_agents_in_turn", "one method trains one agent after another"),
    _exact("torch_lookahead", "a `state_dict`"),
    _exact("torch_sam_momentum", "both optimizers given to the run"),
    _exact("torch_packed_stream", "the count in the `state_dict`"),
    _exact("torch_image_pool", "a `state_dict`"),
    _exact("torch_seq2seq_losses", "`run.state`"),
    _exact("torch_style_closure", "a count in `run.state`"),
    _exact("torch_frozen_teacher", "a frozen teacher in `leave_out`, a scheduler that steps with each batch"),
    _exact("torch_param_groups", "`param_group[\"lr\"]` set in each step, a logger, clocks"),
    _exact("torch_trainer_object", "`self.loss`, `self.logits`, `self.metrics` of each step, objects that print"),
    _exact("tf_dataset_per_epoch", "a function from the epoch to its dataset"),
    _exact("tf_range_epochs", "the epoch as the seed of its shuffle"),
    _exact("tf_permuted_arrays", "arrays permuted by `default_rng(epoch)`"),
    _exact("tf_curriculum", "a dataset chosen from the epoch's number"),
    _exact("torch_epoch_subset", "a part of the examples chosen by `default_rng(epoch)`"),
    _exact("keras_generator_expression", "seeds", is_fit=True),
    _exact("torch_cross_validation", "cross validation: folds by the epoch's number, weights made anew"),
    _exact("tf_ddpg_noise", "a `state_dict` for both"),
    _exact("tf_char_rnn_states", "`run.state`"),
    _exact("tf_gan_list_mean", "`run.state`, begun anew by each epoch"),
    _exact("tf_numpy_function", "numbers of each epoch that Python reads, by `tf.numpy_function`"),
    _exact("tf_repeat_take", "`shuffle(n).repeat().batch(b).take(m)` in each epoch"),
    _exact("tf_python_state", "a `PythonState` that the checkpoint tracks"),
    _exact("tf_loss_table", "rows in files of its own: `worker.LogFile` in `state=`"),
    _exact("tf_frozen_teacher", "a frozen teacher in `leave_out`, a metric in `state=`"),
    _exact("keras_data_generator", "a `PyDataset` that shuffles its indexes in `on_epoch_end`", is_fit=True),
    _exact("keras_plateau_callbacks", "`fit` with a callback that collects losses and best weights", is_fit=True),
    _exact("tf_unfreezing", "`if epoch >= 1: base.trainable = True`"),
    _exact("tf_target_network", "weights, a rate and `run.state` that change behind `step_done`"),
    _exact("keras_callback_class", "attributes of its own", is_fit=True),
    _exact("np_settings_namespace", "`args.noise = 0.5 ** (epoch + 1)` at the head of each epoch"),
    _exact("np_state_set_in_with", "`state={\"best\": float(\"inf\")}`"),
    _exact("tf_traced_weight", "`tf.constant(0.1 * epoch)` as an argument of the function"),
    _exact("jax_key_splitting", "the key in the files, too"),
    _exact("jax_batchnorm_state", "the statistics in the files, too"),
    _exact("jax_optax_ema", "the average in the files, too"),
    _exact("jax_policy_baseline", "`run.state`"),
    _exact("jax_named_tuple", "all of the tuple in the files, `beta` in `run.state`"),
    _exact("jax_state_arrays", "JAX: a key and a moving average of parameters in `run.state`"),
    _exact("jax_tqdm_bar", "JAX: a tqdm bar, clocks, settings as lists of lists"),
)  # fmt: skip

CORPUS = (*MINIMAL, *EXACT)

FEW_KILLS, ALL_KILLS = 2, 4
_EXACT_IN_EVERY_RUN = frozenset(
    {
        *("torch_mnist_argparse", "torch_dqn", "torch_ema", "torch_randperm", "torch_endless_loader"),
        *("tf_epoch_loop", "tf_target_network", "tf_python_state", "tf_dataset_per_epoch", "keras_plateau_callbacks"),
        "jax_policy_baseline",
    }
)


def exact_cases(*frameworks: Framework) -> list[ParameterSet]:
    """An entry, and how many kills it gets. `make test` runs all scripts without a framework and, of those with one,
    which take longest, some of each way to write the loop and of each place for what has to be saved, killed in a save
    and in the loop. `make nightly` runs all, killed in their first step too and at another line."""
    cases = []
    for entry in (entry for entry in EXACT if entry.framework in frameworks):
        if entry.framework == Framework.NUMPY or entry.name in _EXACT_IN_EVERY_RUN:
            cases.append(pytest.param(entry, FEW_KILLS, id=f"{id_of(entry)}, twice"))
        cases.append(pytest.param(entry, ALL_KILLS, marks=pytest.mark.nightly, id=id_of(entry)))
    return cases
