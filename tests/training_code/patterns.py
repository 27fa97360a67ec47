"""One matrix of the patterns of ordinary training code: what happens to each after a kill, and which tests hold it."""

from dataclasses import dataclass

EXACT = "equal bits"
NAMED = "named"
REFUSED = "refused"


@dataclass(frozen=True)
class Pattern:
    """`what`: what people write. `tests`: those that fail if `outcome` is no longer true. `said`: of the message."""

    what: str
    outcome: str
    tests: tuple[str, ...]
    said: str = ""

    @property
    def row(self) -> tuple[str, str]:
        """Its row of the table."""
        return self.what, f"{self.outcome}: “{self.said}”" if self.said else self.outcome


_WORKER = "tests/worker/"
_SCRIPTS = "tests/training_code/test_scripts.py::test_killed_script_ends_with_the_bits_of_an_undisturbed_one"
_PASSES = f"{_WORKER}data/test_passes.py::test_"
_CHECKS = f"{_WORKER}data/test_checks.py::test_"
_EPOCHS = f"{_WORKER}run/test_epochs.py::test_death_at_any_moment_of_an_epoch_changes_nothing"
_MISUSE = f"{_WORKER}run/test_misuse.py::test_"
_LOOPS = f"{_WORKER}progress/test_loops.py::test_"
_OWN_LOOPS = f"{_WORKER}checks/test_own_loops.py::test_"
_KILLED_LOOPS = f"{_WORKER}run/test_killed_loops.py::test_killed_loop_ends_with_the_bits_of_an_undisturbed_one"
_FIT = f"{_WORKER}keras/test_fit_arguments.py::test_"
_LOADERS = f"{_WORKER}torch/test_torch_loaders.py::test_"
_TORCH = f"{_WORKER}torch/test_torch_checks.py::test_"

PATTERNS = (
    Pattern(
        "`ds.shuffle(n)` with and without a seed, several epochs; `prefetch`, `cache`, `interleave`, `zip`, "
        "`sample_from_datasets`, `tf.random.*` in `map`; on one and on several replicas",
        EXACT,
        (
            f"{_PASSES}order_of_every_pass_comes_back_from_any_position",
            f"{_PASSES}run_resumes_a_shuffled_dataset_after_any_step",
            f"{_WORKER}data/test_killed_passes.py::test_killed_training_on_shuffled_data_ends_with_equal_bits",
        ),
    ),
    Pattern(
        "`ds.shuffle(n)` without any seed, and without `deterministic`",
        NAMED,
        (f"{_CHECKS}randomness_that_can_not_be_repeated_is_named",),
        "the order of Dataset.shuffle(5), which has no seed",
    ),
    Pattern(
        "Python's or NumPy's generator inside of `from_generator` or `map`",
        NAMED,
        (f"{_CHECKS}randomness_that_can_not_be_repeated_is_named",),
        "cannot resume exactly: …",
    ),
    Pattern(
        "`for epoch in run.epochs(n)`, `while run.epoch < n`, `for epoch in range(run.epoch, n)`, with code before and "
        "behind the loop over the batches",
        EXACT,
        (_EPOCHS,),
    ),
    Pattern(
        "`for epoch in range(n): for batch in run.batches(ds):`",
        REFUSED,
        (f"{_MISUSE}loop_over_epochs_that_begins_again_is_refused_with_the_line_to_write",),
        "write for epoch in run.epochs(n):",
    ),
    Pattern(
        "the same with `range(args.epochs)`, `range(cfg.train.epochs)`, `while n < args.epochs`",
        REFUSED,
        (f"{_OWN_LOOPS}attribute_of_another_object_is_not_the_runs",),
        "write for epoch in run.epochs(args.epochs):",
    ),
    Pattern(
        "`for i in run.order(np.random.permutation(n))`, `for step in run.range(n)`, in epochs and alone",
        EXACT,
        (
            f"{_LOOPS}death_at_any_moment_changes_nothing",
            f"{_WORKER}progress/test_random_loops.py::test_loops_of_any_shape_go_on_exactly_or_are_refused",
            _KILLED_LOOPS,
        ),
    ),
    Pattern(
        "weights, a rate, `run.state` or random numbers that change behind `step_done` in such a loop or over "
        "`run.batches`",
        EXACT,
        (
            f"{_LOOPS}death_at_any_moment_changes_nothing",
            f"{_LOOPS}code_behind_a_step_and_a_break_belong_to_it",
        ),
    ),
    Pattern(
        "changes of saved state behind `step_done` in `while run.step < n:`, `for step in range(run.step, n):`",
        NAMED,
        (f"{_OWN_LOOPS}change_of_saved_state_behind_the_step_of_a_loop_without_position_is_named",),
        "call run.step_done last",
    ),
    Pattern(
        "`run.state`, weights or a rate that are set between the `with` and the loop; random numbers drawn there",
        NAMED,
        (f"{_WORKER}checks/test_run_heads.py::test_what_each_start_does_again_before_the_loop_is_named",),
        "each start does it again, over what was restored",
    ),
    Pattern(
        "`layer.trainable`, `dropout.rate`, `momentum` that an epoch changes once, or from what they were",
        NAMED,
        (f"{_WORKER}checks/watch/test_framework_settings.py::test_setting_that_a_loop_changes_is_named",),
        "set it at the head of each epoch from its number",
    ),
    Pattern(
        "settings, queues, caches and other values in objects of the standard library; names that are bound to another "
        "function, loss or optimizer",
        NAMED,
        (f"{_WORKER}checks/watch/test_standard_objects.py::test_what_a_loop_carries_outside_of_containers_is_named",),
        "the loop carries it from step to step",
    ),
    Pattern(
        "one step in each body of `run.epochs`: an episode, a full batch, a step behind the data",
        EXACT,
        (f"{_LOOPS}death_at_any_moment_changes_nothing", _KILLED_LOOPS),
    ),
    Pattern(
        "inside of `run.epochs`, several steps in a loop of the script's own; several steps for one batch",
        REFUSED,
        (f"{_LOOPS}step_that_no_position_tells_from_the_one_before_is_refused",),
        "write for i in run.range(n):",
    ),
    Pattern(
        "`for step in range(n)`, `for episode in range(n)`, `itertools.count()` around `step_done`",
        NAMED,
        (f"{_OWN_LOOPS}own_loop_around_a_step_is_named_at_the_first_one",),
        "write for step in run.range(n):",
    ),
    Pattern(
        "`while True:` with a counter of its own",
        NAMED,
        (f"{_WORKER}checks/watch/test_step_watch.py::test_what_counts_the_steps_is_told_its_line",),
        "write count = run.step",
    ),
    Pattern(
        "`for epoch in range(1, n + 1):` around `run.batches`",
        REFUSED,
        (f"{_OWN_LOOPS}loop_over_epochs_from_one_on_is_written_with_their_numbers",),
        "write for epoch in run.epochs(n): epoch += 1",
    ),
    Pattern(
        "`for i, batch in enumerate(run.batches(ds))` that uses `i`",
        NAMED,
        (f"{_OWN_LOOPS}number_of_a_loop_that_begins_at_0_is_named_where_it_is_used",),
        "begin with run.batch",
    ),
    Pattern(
        "batches that a buffer or a thread of the script's own reads ahead",
        NAMED,
        (f"{_LOOPS}batches_that_are_read_ahead_are_named", f"{_OWN_LOOPS}thread_that_reads_ahead_is_named"),
        "the position …, which is read ahead of the steps",
    ),
    Pattern(
        "`break` behind `step_done`, `islice` and `zip` around `run.batches`",
        NAMED,
        (f"{_MISUSE}end_of_an_epoch_before_that_of_its_data_is_named",),
        "a restart from the checkpoint of the step before it trains one batch more",
    ),
    Pattern(
        "two `run.batches` in one step, or one after the other in an epoch",
        REFUSED,
        (
            f"{_MISUSE}two_loops_over_batches_side_by_side_are_an_error",
            f"{_MISUSE}second_dataset_in_an_epoch_is_an_error",
        ),
        "cannot read two run.batches side by side",
    ),
    Pattern(
        "a loop over the dataset itself instead of `run.batches`",
        NAMED,
        (
            f"{_CHECKS}loop_over_the_dataset_itself_is_named_with_its_line",
            f"{_CHECKS}loop_over_a_distributed_dataset_is_named",
        ),
        "cannot resume exactly: …",
    ),
    Pattern(
        "`tf.random.*` and what is built on it inside the step (VAE, GAN), under `deterministic`",
        EXACT,
        (
            f"{_WORKER}state/test_random_operations.py::test_operation_repeats_its_numbers_from_a_restored_state",
            f"{_SCRIPTS}[tf_dcgan]",
        ),
    ),
    Pattern(
        "`tf.random.*` in traced functions without `deterministic`",
        NAMED,
        (f"{_CHECKS}stateful_random_operations_are_named_with_their_lines",),
        "RandomUniform at train.py:31",
    ),
    Pattern(
        "values of the loop in `run.state`, objects with `state_dict`, Keras metrics",
        EXACT,
        (
            _EPOCHS,
            f"{_MISUSE}object_with_a_state_of_its_own_is_restored",
            f"{_WORKER}run/test_metrics_in_state.py::test_each_replica_gets_its_part_of_a_metric_back",
        ),
    ),
    Pattern(
        "`best`, `running_reward`, a list of losses, a dict of statistics that nobody keeps",
        NAMED,
        (
            f"{_WORKER}checks/watch/test_step_watch.py::test_carried_value_is_named",
            f"{_MISUSE}value_that_the_loop_carries_ends_a_strict_training_at_its_first_step",
        ),
        'the loop carries it from step to step: keep it in run.state["best"]',
    ),
    Pattern(
        "a name that is put into `run.state` in each pass, and that nothing takes from there at a start",
        NAMED,
        (f"{_WORKER}checks/watch/code/test_state_uses.py::test_a_name_that_is_put_there_and_never_taken_is_named",),
        "nothing takes it from there",
    ),
    Pattern(
        "variables of each replica (SUM, MEAN, ONLY_FIRST)",
        EXACT,
        (
            f"{_WORKER}checkpoint/test_replica_values.py::test_each_replica_gets_its_own_value_back",
            f"{_WORKER}run/test_three_replicas.py::test_killed_training_on_three_replicas_ends_with_equal_bits",
            f"{_WORKER}run/test_own_values.py::test_each_process_goes_on_with_its_own_values",
        ),
    ),
    Pattern(
        "variables of each replica (SUM, MEAN, ONLY_FIRST) with another number of replicas",
        "merged as their aggregation says, which `restored` tells",
        (
            f"{_WORKER}checkpoint/test_replica_values.py::test_fewer_replicas_get_what_the_aggregation_says",
            f"{_WORKER}run/test_three_replicas.py::test_two_replicas_go_on_with_the_state_of_three",
            f"{_WORKER}run/test_own_values.py::test_with_other_processes_the_sums_are_kept_and_it_is_said",
        ),
    ),
    Pattern(
        "a variable, generator or metric that no checkpoint holds",
        NAMED,
        (f"{_WORKER}checks/test_missing_variables.py::test_missing_variable_is_named_however_it_is_reached",),
        "checkpoints do not include …",
    ),
    Pattern(
        "`fit` with arrays, `PyDataset`, generators, `validation_split`, `steps_per_epoch`, datasets",
        EXACT,
        (
            f"{_FIT}fit_interrupted_anywhere_ends_like_an_undisturbed_one",
            f"{_FIT}fit_killed_at_the_edges_ends_like_an_undisturbed_one",
        ),
    ),
    Pattern(
        "`fit` with an endless dataset and no `steps_per_epoch`, and other arguments that can't be resumed",
        REFUSED,
        (f"{_FIT}arguments_that_can_not_be_resumed_are_refused_with_a_remedy",),
        "steps_per_epoch",
    ),
    Pattern(
        "`ModelCheckpoint`, `TensorBoard`, `CSVLogger` among the callbacks",
        EXACT,
        (f"{_WORKER}keras/test_fit_callbacks.py::test_callbacks_and_their_files_end_like_those_of_an_undisturbed_run",),
    ),
    Pattern(
        "`BackupAndRestore` among the callbacks",
        REFUSED,
        (f"{_WORKER}keras/test_fit_callbacks.py::test_backup_and_restore_is_refused",),
        "BackupAndRestore",
    ),
    Pattern(
        "subclassed models, several optimizers, a custom `train_step`, a model without an Input in `fit`",
        EXACT,
        (
            f"{_WORKER}keras/test_fit_models.py::test_models_of_tutorials_end_like_an_undisturbed_run",
            f"{_WORKER}keras/test_fit_models.py::test_model_without_an_input_is_built_from_its_data",
        ),
    ),
    Pattern(
        "a Keras backend other than TensorFlow",
        REFUSED,
        (f"{_WORKER}test_public_names.py::test_keras_on_another_backend_is_refused_with_what_to_set",),
        "KERAS_BACKEND",
    ),
    Pattern(
        "`TF_USE_LEGACY_KERAS=1`; a model of tf_keras in `worker.keras.fit`",
        REFUSED,
        (f"{_WORKER}test_public_names.py::test_keras_2_in_place_of_keras_3_is_refused_with_what_to_write",),
        "write import tf_keras in place of tf.keras",
    ),
    Pattern(
        "a model, optimizer and metrics of tf_keras in the tf.train.Checkpoint of `worker.Run`",
        EXACT,
        (f"{_WORKER}run/test_keras_2.py::test_killed_training_of_a_keras_2_model_ends_with_equal_bits",),
    ),
    Pattern(
        "PyTorch: a `DataLoader` of the script's own",
        EXACT,
        (f"{_TORCH}dataloaders_of_the_script_resume_with_the_next_example", f"{_SCRIPTS}[torch_classifier]"),
    ),
    Pattern(
        "PyTorch: weighted, subset, distributed and custom samplers, batch samplers, `batch_size=None`, an "
        "`IterableDataset`, torchdata's `StatefulDataLoader`, `accelerator.prepare(loader)`",
        EXACT,
        (f"{_LOADERS}loader_of_any_kind_resumes_with_the_next_batch", f"{_SCRIPTS}[torch_accelerate]"),
    ),
    Pattern(
        "PyTorch: a sampler or stream that yields something else when it is asked again, a loader with an `__iter__` "
        "of its own",
        REFUSED,
        (f"{_TORCH}loaders_that_can_not_be_resumed_are_refused_with_what_to_write",),
        "cannot resume a DataLoader with …",
    ),
    Pattern(
        "PyTorch: a generator that a dataset holds",
        NAMED,
        (f"{_TORCH}generator_of_a_dataset_is_named_at_the_first_step",),
        'worker.torch.Run(..., generators={"rng": dataset.rng})',
    ),
    Pattern(
        "PyTorch: `step_done` inside of gradient accumulation, a forgotten `zero_grad`",
        "named at the second or third step",
        (f"{_TORCH}gradients_that_are_carried_over_a_step_are_named_and_no_others",),
        "call run.step_done once for each optimizer.step",
    ),
    Pattern(
        "`transformers.Trainer`, Lightning's `Trainer`",
        REFUSED,
        (f"{_LOADERS}loops_of_libraries_are_refused_in_their_words_and_what_is_to_be_written_is_exact",),
        "cannot resume transformers.Trainer.train (train.py:21): …",
    ),
    Pattern(
        "PyTorch: an optimizer, scheduler, scaler, averaged model or generator that was not given to `Run`",
        NAMED,
        (f"{_TORCH}state_that_nobody_keeps_is_named_at_the_first_step",),
        "pass it to worker.torch.Run by name",
    ),
    Pattern(
        "a TF1 session with a Saver of its own; epochs with `run.steps(n)`",
        EXACT,
        (f"{_SCRIPTS}[tf1_saver]", f"{_WORKER}test_tf1.py::test_epochs_of_a_session_end_with_the_same_bits"),
    ),
    Pattern(
        "training loops of other packages (Ignite, KerasRS)",
        EXACT,
        (f"{_SCRIPTS}[torch_ignite]", f"{_SCRIPTS}[keras_recommender]"),
    ),
    Pattern(
        "values that the loop of another package carries",
        NAMED,
        (f"{_WORKER}checks/watch/test_step_watch.py::test_value_of_a_librarys_loop_is_not_to_be_put_into_the_state",),
        "the loop of a library carries it from step to step",
    ),
    Pattern(
        "`run = worker.Run(...)` without `with`",
        REFUSED,
        (f"{_MISUSE}run_that_was_not_entered_says_so_at_its_first_use",),
        "write with worker.Run(...) as run:",
    ),
    Pattern(
        "an epoch without `step_done`",
        "an error at the epoch's end",
        (f"{_MISUSE}epoch_without_a_step_is_an_error_at_its_end", f"{_TORCH}epoch_without_step_done_is_an_error"),
        "run.step_done was never called",
    ),
    Pattern(
        "`strategy=` left out, a model made outside of the scope, a step without `strategy.run`",
        REFUSED,
        (
            f"{_MISUSE}strategy_left_out_is_an_error",
            f"{_MISUSE}model_made_outside_the_scope_is_an_error_whatever_its_optimizer",
            f"{_MISUSE}step_that_is_not_run_on_the_replicas_is_told_of_strategy_run",
        ),
        "strategy",
    ),
    Pattern(
        "the script's own `CheckpointManager` beside the run",
        EXACT,
        (
            f"{_WORKER}run/test_own_restore.py::test_saves_of_the_scripts_own_manager_leave_ours_alone",
            f"{_SCRIPTS}[tf_distributed_loop]",
        ),
    ),
    Pattern(
        "a restore of the script's own before the run",
        "named at the start",
        (f"{_WORKER}run/test_own_restore.py::test_restore_by_the_scripts_own_manager_is_named",),
        "if the script restores a checkpoint of its own, take that out",
    ),
    Pattern(
        "another dataset, element spec or batch size than before",
        "said at the first step after the restart",
        (
            f"{_WORKER}data/test_changed_data.py::test_other_data_than_before_are_said",
            f"{_FIT}other_arrays_than_before_are_said",
        ),
        "batch size of the data is 64, was 32",
    ),
    Pattern(
        "another learning rate, optimizer or seed than before",
        "said at the restore, with the value that is used and how to have the other",
        (
            f"{_WORKER}run/test_script_conditions.py::test_edit_of_an_optimizer_is_said",
            f"{_WORKER}run/test_script_conditions.py::test_line_that_the_message_names_works_and_ends_it",
            f"{_WORKER}torch/test_torch.py::test_edits_of_a_script_are_said_with_what_is_used_now",
        ),
        "optimizer.learning_rate is 0.003, from the checkpoint; the script says 0.0001",
    ),
)
