"""What a daemon that starts later is told."""

from supervisor.protocol.wire.messages import Committed, Done, Failed, Phase, Restored, Restoring
from worker.process.requests import PendingRequests
from worker.process.sent_messages import SentMessages


def test_the_newest_checkpoint_is_repeated_with_all_that_none_holds():
    sent = SentMessages()
    sent.record(Committed(1, 2, "step-0000000002.a1", 10, 0.1, 0.1, left_out=("order",)))
    sent.record(Committed(1, 4, "step-0000000004.a1", 10, 0.1, 0.1, left_out=("rate",)))
    sent.record(Committed(1, 4, "step-0000000004.a1", 10, 0.1, 0.1, flushes=(7,), ago_s=3.0))

    (repeated,) = sent.repeated()

    assert isinstance(repeated, Committed)
    assert (repeated.step, repeated.left_out) == (4, ("order", "rate"))


def test_the_age_of_a_checkpoint_is_not_that_of_the_message_about_it():
    sent = SentMessages()
    sent.record(Committed(1, 4, "step-0000000004.a1", 10, 0.1, 0.1, flushes=(7,), ago_s=3600.0))

    (repeated,) = sent.repeated()

    assert isinstance(repeated, Committed)
    assert repeated.ago_s is not None and repeated.ago_s >= 3600.0


def test_the_end_of_a_run_is_not_repeated_once_the_next_one_has_begun():
    sent = SentMessages()
    sent.record(Restored(1, 0, None, 0.0))
    sent.record(Done(1, 20))
    sent.record(Failed(1, 20, "words"))
    assert sent.status(1, PendingRequests(), has_go=True).phase is Phase.DONE
    assert [type(message) for message in sent.repeated()] == [Restored, Done, Failed]

    sent.record(Restoring(1, "step-0000000020.a1"))

    assert not [message for message in sent.repeated() if isinstance(message, Done | Failed)]
    assert sent.status(1, PendingRequests(), has_go=True).phase is Phase.TRAINING
