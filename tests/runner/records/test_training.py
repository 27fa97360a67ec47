"""What is known of a job's training."""

from supervisor.protocol.wire import messages
from supervisor.runner.records.training import MAX_LEFT_OUT, TrainingStatus


def test_checkpoint_is_known_through_attempts_until_training_begins_from_scratch():
    training = TrainingStatus()
    training.on_message(messages.Restored(1, 0, None, 0.0), 0.0)
    training.on_message(messages.Committed(1, 40, "step-0000000040.a1", 10, 0.1, 0.1), 0.0)
    training.reset_for_attempt()
    training.on_message(messages.Restored(2, 40, "step-0000000040.a1", 0.1), 0.0)
    assert training.checkpoint is not None and training.checkpoint.step == 40

    training.reset_for_attempt()
    training.on_message(messages.Restored(3, 0, None, 0.0), 0.0)

    assert training.checkpoint is None, "a crash would lose all that this attempt has done"


def test_a_checkpoint_that_a_start_has_given_up_is_no_longer_shown():
    training = TrainingStatus()
    training.on_message(messages.Committed(1, 49, "step-0000000049.a1", 10, 0.1, 0.1), 0.0)
    training.reset_for_attempt()

    training.on_message(messages.Restored(2, 40, "step-0000000040.a1", 0.1), 0.0)

    assert training.checkpoint is None


def test_a_report_that_a_commit_has_overtaken_takes_no_step_back():
    """Of progress the newest report is sent once all that has to arrive is, and again as the loop turns elsewhere."""
    training = TrainingStatus()
    training.on_message(messages.Restored(1, 0, None, 0.0), 0.0)
    training.on_message(messages.Committed(1, 12, "step-0000000012.a1", 10, 0.1, 0.1), 0.0)

    training.on_message(messages.Progress(1, 11, 0, 100, 0.1, {}, None), 0.0)

    assert training.step == 12


def test_what_no_checkpoint_holds_is_shown_whenever_it_was_found():
    training = TrainingStatus()
    training.on_message(messages.Committed(1, 2, "step-0000000002.a1", 10, 0.1, 0.1, left_out=("order",)), 0.0)
    training.on_message(messages.Committed(1, 4, "step-0000000004.a1", 10, 0.1, 0.1, left_out=("rate", "order")), 0.0)
    training.on_message(messages.Committed(1, 6, "step-0000000006.a1", 10, 0.1, 0.1), 0.0)

    assert training.left_out == ("order", "rate")


def test_names_that_are_new_in_each_message_are_kept_up_to_a_number():
    training = TrainingStatus()
    for number in range(1000):
        names = tuple(f"{number}.{each}" for each in range(10))
        training.on_message(messages.Committed(1, 2, "step-0000000002.a1", 10, 0.1, 0.1, left_out=names), 0.0)

    assert len(training.left_out) == MAX_LEFT_OUT
    assert training.left_out[0] == "0.0"
