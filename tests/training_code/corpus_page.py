"""Writes docs/patterns.md from its tables: `python -m tests.training_code.corpus_page`."""

from tests.places import ROOT
from tests.training_code import rig
from tests.training_code.corpus import EXACT, MINIMAL
from tests.training_code.patterns import EXACT as EXACTLY
from tests.training_code.patterns import PATTERNS
from tests.training_code.scripts import SCRIPTS

PAGE = ROOT / "docs" / "patterns.md"
_HEAD = """\
# Patterns of training code

What of training code as people write it is exact after a kill, what is named or refused, and what to write instead.
Tests hold every row (`make bench-exactness`).

## What is exact

Under `deterministic`, these end with equal bits:

"""
_OTHERS_HEAD = """
## What is not

*Named* is at the first step and trains on, *refused* is before the second.

| what people write | after a kill |
|---|---|
"""
_SCRIPTS_HEAD = """
## Scripts that are killed

Examples to copy from, in `tests/training_code`:

- `resumable`: {scripts} scripts with the structure of their frameworks' tutorials (TensorFlow, Keras, TF1, PyTorch,
  Ignite, accelerate, KerasRS), each with a patch of the {least} to {most} lines that stepkeeper added.
- `minimal`: {minimal} short scripts with no more than `with worker.Run(...) as run:` and `run.step_done()`. Each loses
  something at a restart, which the worker names or refuses before the third step ends (or one step after the end of
  the epoch that loses it).
- `exact`: {exact} that are the same with their remedy, and others; {exact_least} to {exact_most} lines of each mention
  the run, `worker` or `leave_out`. The worker names nothing.

Those of `resumable` and `exact` are killed, in steps, at the end of an epoch and in saves, and end with the bits of an
undisturbed run.

| write | for |
|---|---|
"""
_REMEDIES = (
    ("`run.epochs`, `run.range`, `run.order`, `run.batches`, `run.batch`, `run.step`",
     "loops, counters and permutations of the script's own, `itertools.cycle`",
     "torch_mnist_argparse torch_dataclass_config tf_epoch_loop np_softmax_argparse np_while_epochs torch_wgan_critic "
     "np_permutation torch_randperm torch_endless_loader np_counter"),
    ("`run.state`, or `state=` with the initial value",
     "epsilon, temperatures, tensors that belong to no module, hidden states, baselines, moving averages, queues, "
     "totals and lists of losses, places in files",
     "np_qlearning np_sarsa_steps np_annealing torch_ema tf_ema torch_word_language_model torch_moco_queue "
     "torch_reinforce torch_seq2seq_losses torch_style_closure tf_char_rnn_states tf_gan_list_mean jax_policy_baseline "
     "np_state_set_in_with torch_sac_temperature torch_trained_image np_line_reader"),
    ("a `state_dict` and `load_state_dict`, and the object in `run.state`",
     "objects of the script: meters, early stopping, warm-up classes, replay memories, pools of images, wrappers of "
     "optimizers, trainers, environments, streams",
     "np_average_meter torch_noam_warmup torch_early_stopping torch_dqn torch_lookahead torch_image_pool "
     "tf_ddpg_noise torch_hf_trainer torch_ppo_buffers np_gridworld_observation torch_packed_stream"),
    ("a value computed from the step or the epoch's number, seeds, or a function from the epoch to its dataset",
     "rates, stages of fine-tuning, datasets and subsets that each epoch makes",
     "torch_global_lr tf_dataset_per_epoch tf_range_epochs tf_permuted_arrays tf_curriculum torch_epoch_subset "
     "keras_generator_expression tf_unfreezing np_settings_namespace"),
    ("both into the run", "an optimizer around another one", "torch_sam_momentum"),
    ("a buffer or weight of the model", "KL weights, codebooks, what a callback changes in the model",
     "torch_vae_anneal keras_callback_beta torch_vqvae"),
    ("it into the files, too", "what `write` of `worker.files` forgets: chains, keys, statistics, averages",
     "np_rbm_pcd jax_key_splitting jax_batchnorm_state jax_optax_ema jax_named_tuple jax_named_tuple_field"),
    ("`generators=`", "a generator that a dataset owns", "torch_augmenting_dataset"),
    ("a tensor as an argument of the `tf.function`", "a number that is a constant once it is traced",
     "tf_traced_weight"),
    ("attributes of the callback's own", "a callback that counts in those of its class", "keras_callback_class"),
    ("one `step_done` for each step of the optimizer", "gradients accumulated over several",
     "torch_grad_accumulation"),
    ("(only named)", "`step_done(epoch=, batch=)`, hooks, attributes of parameters, `SobolEngine`, numbers in metrics",
     "np_numbered_steps torch_hook_noise torch_parameter_velocity torch_sobol keras_metric_python"),
)  # fmt: skip
"""What to write instead, in what it helps, and the minimal scripts of which that is true: all of them."""


def page() -> str:
    """The page's whole text. Raises ValueError unless each minimal script is among the remedies once."""
    listed = [name for _, _, names in _REMEDIES for name in names.split()]
    if sorted(listed) != sorted(entry.name for entry in MINIMAL):
        raise ValueError(f"remedies and scripts differ: {set(listed) ^ {entry.name for entry in MINIMAL}}")
    added, lines = [len(rig.added_lines(script.name)) for script in SCRIPTS], [entry.lines for entry in EXACT]
    return "".join(
        [
            _HEAD,
            *(f"- {pattern.what}\n" for pattern in PATTERNS if pattern.outcome == EXACTLY),
            _OTHERS_HEAD,
            *(_row(*pattern.row) for pattern in PATTERNS if pattern.outcome != EXACTLY),
            _SCRIPTS_HEAD.format(
                scripts=len(SCRIPTS),
                least=min(added),
                most=max(added),
                minimal=len(MINIMAL),
                exact=len(EXACT),
                exact_least=min(lines),
                exact_most=max(lines),
            ),
            *(_row(write, what) for write, what, _ in _REMEDIES),
        ]
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
