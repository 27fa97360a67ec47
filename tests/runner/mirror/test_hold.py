"""When a host takes a run in an object store, and what it still has to put there."""

from supervisor.host.mirror.messages import EpochAnswer, FetchAnswer
from supervisor.protocol.layout import CheckpointName
from supervisor.runner.mirror.hold import RunHold

OLD, NEW = CheckpointName(100, 1), CheckpointName(200, 2)


def fetched(newest: CheckpointName | None, **more: bool) -> FetchAnswer:
    """What the store says that has this checkpoint, of another host unless `is_held`."""
    text = None if newest is None else str(newest)
    return FetchAnswer(1, text, epoch=3, newest=text, seen=text, **more)


def test_the_run_of_another_host_is_taken_by_the_first_step_not_by_the_start():
    hold = RunHold()
    hold.learn(fetched(OLD))

    hold.begin_attempt(OLD, gives_up_newer=False, now=0.0)
    had_work = hold.has_work
    hold.begin_training()

    assert (had_work, hold.has_work) == (False, True)


def test_a_host_that_has_the_run_need_not_wait_for_a_step():
    hold = RunHold()
    hold.learn(fetched(OLD, is_held=True))

    hold.begin_attempt(OLD, gives_up_newer=False, now=0.0)

    assert hold.has_work


def test_a_checkpoint_that_the_other_host_uploaded_meanwhile_is_begun_from():
    hold = RunHold()
    hold.begin_attempt(OLD, gives_up_newer=False, now=0.0)
    hold.begin_training()

    newer = hold.begin_epoch(EpochAnswer(1, 4, newer=str(NEW)), OLD, hold.starts)

    assert (newer, hold.newest, hold.waits) == (NEW, NEW, False)


def test_an_epoch_that_an_earlier_attempt_asked_for_says_nothing_about_a_later_one():
    hold = RunHold()
    hold.begin_attempt(OLD, gives_up_newer=False, now=0.0)
    asked_with = hold.starts
    hold.begin_attempt(None, gives_up_newer=True, now=1.0)

    hold.begin_epoch(EpochAnswer(1, 4, newer=str(NEW)), OLD, asked_with)

    assert (hold.epoch, hold.known) == (None, 4)


def test_a_commit_waits_until_the_store_has_it_and_is_behind_since_it_was_made():
    hold = RunHold()
    hold.begin_attempt(None, gives_up_newer=False, now=0.0)
    hold.begin_training()
    hold.begin_epoch(EpochAnswer(1, 1), None, hold.starts)
    hold.add_commit(OLD, 5.0)
    hold.add_commit(NEW, 6.0)
    behind_since = hold.lacking_since()

    hold.add_upload(str(NEW), (str(NEW),))

    assert (behind_since, hold.lacking_since(), hold.waits) == (5.0, None, False)


def test_a_lost_run_has_nothing_to_upload_and_the_next_start_looks_anew():
    hold = RunHold()
    hold.begin_attempt(OLD, gives_up_newer=False, now=0.0)
    hold.begin_training()
    hold.begin_epoch(EpochAnswer(1, 2), OLD, hold.starts)
    hold.add_commit(NEW, 5.0)

    hold.lose()

    assert (hold.waits, hold.has_work, hold.known, hold.epoch) == (False, False, 0, None)


def test_what_an_earlier_daemon_left_is_finished_unless_another_host_left_it_behind():
    finished, left_behind = RunHold(), RunHold()
    for hold in (finished, left_behind):
        hold.resume()

    finishes = finished.settle_resume(NEW, fetched(OLD, is_held=True), 0.0)
    gives_up = left_behind.settle_resume(NEW, FetchAnswer(1, None, epoch=3, left_behind=(str(NEW),)), 0.0)

    assert (finishes, finished.wanted) == (True, str(NEW))
    assert (gives_up, left_behind.wanted, left_behind.waits) == (False, None, False)


def with_epoch(*, uploads_start: bool = True) -> RunHold:
    """It has the run, and the older checkpoint is in the store."""
    hold = RunHold(uploads_start)
    hold.begin_attempt(OLD, gives_up_newer=False, now=0.0)
    hold.begin_training()
    hold.begin_epoch(EpochAnswer(1, 3), OLD, hold.starts)
    hold.add_upload(str(OLD), (str(OLD),))
    return hold


def test_checkpoint_that_was_given_up_is_not_in_the_epoch_that_goes_on_from_an_older_one():
    hold = with_epoch()
    hold.add_commit(NEW, 5.0)
    hold.add_upload(str(NEW), (str(NEW), str(OLD)))
    hold.learn(FetchAnswer(2, None, epoch=3, newest=str(OLD), seen=str(NEW), is_held=True))  # below a step

    hold.begin_attempt(OLD, gives_up_newer=False, now=6.0)

    assert (hold.epoch, hold.start, hold.seen, hold.has_work) == (None, str(OLD), NEW, True)


def test_upload_that_is_on_its_way_is_not_in_the_epoch_that_goes_on_from_an_older_one():
    hold = with_epoch()
    hold.add_commit(NEW, 5.0)

    hold.begin_attempt(OLD, gives_up_newer=False, now=6.0)

    assert (hold.epoch, hold.seen, hold.wanted) == (None, NEW, None)


def test_one_epoch_is_enough_for_all_starts_from_what_it_goes_on_from():
    hold = with_epoch()
    hold.add_commit(NEW, 5.0)
    hold.begin_attempt(OLD, gives_up_newer=False, now=6.0)
    hold.begin_epoch(EpochAnswer(1, 4), OLD, hold.starts)

    hold.begin_attempt(OLD, gives_up_newer=False, now=7.0)

    assert hold.epoch == 4


def test_commit_of_parts_whose_answer_is_not_there_may_have_left_a_newer_one():
    hold = with_epoch(uploads_start=False)
    before = hold.may_have_newer(OLD)
    hold.add_commit(NEW, 5.0)

    assert (before, hold.may_have_newer(OLD)) == (False, True)
