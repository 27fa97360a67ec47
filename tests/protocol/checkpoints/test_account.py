"""Whether a start may begin from a checkpoint: as new as the newest, older for a reason, or not at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.checkpoints.account import (
    Decisions,
    Newest,
    Older,
    ProgressAccount,
    ReportedCheckpoint,
    SeenDirectory,
    StatedReason,
    Unexplained,
    find_explanation,
    find_loss,
    find_passed_over,
    judge,
)
from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint
from supervisor.protocol.layout import CheckpointName, parse_name

HOME, DISK, ROOT = "/data/digits", "xfs at /data", "ext4 at /"
NEWEST = ReportedCheckpoint(1200, "step-0000001200.a3", HOME, DISK, 3)
REFUSAL, REMEDY = "cannot train digits", "mount the disk"


NOTHING_DECIDED = Decisions()


def judged(
    chosen: int | None, place: SeenDirectory, decisions: Decisions = NOTHING_DECIDED
) -> Newest | Older | Unexplained:
    return judge(NEWEST, chosen, place, decisions, REFUSAL, REMEDY)


@pytest.mark.parametrize(
    ("newest", "place"),
    [
        (None, SeenDirectory(HOME, None, DISK)),
        (NEWEST, SeenDirectory(HOME, 1200, DISK)),
        (NEWEST, SeenDirectory(HOME, 1300, ROOT)),
        (NEWEST, SeenDirectory("/data/new", 1200, ROOT)),
        (NEWEST, SeenDirectory(HOME, 900, DISK, RejectedCheckpoint(NEWEST.name, "damaged"))),
    ],
    ids=["first start", "it is there", "the folder is on another disk", "in another directory", "in quarantine"],
)
def test_nothing_is_missing(newest: ReportedCheckpoint | None, place: SeenDirectory) -> None:
    assert find_loss(newest, place, REFUSAL, REMEDY) is None


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (
            SeenDirectory(HOME, None, ROOT),
            "(xfs at /data), but the folder is now on ext4 at / and holds no checkpoint; mount",
        ),
        (SeenDirectory(HOME, 900, ROOT), "but the folder is now on ext4 at / and its newest checkpoint is of step 900"),
        (SeenDirectory(HOME, None, DISK), "and no checkpoint is there now; mount the disk"),
        (SeenDirectory("/data/digit", None, DISK), "checkpoint_dir is now /data/digit, which holds no checkpoint; set"),
        (
            SeenDirectory("/data/digit", 40, DISK),
            "checkpoint_dir is now /data/digit, which has step 40 as its newest; set",
        ),
    ],
    ids=["not mounted", "an old copy below the mount point", "deleted", "one letter", "another run's folder"],
)
def test_a_loss_waits_and_names_step_place_and_remedies(place: SeenDirectory, words: str) -> None:
    loss = find_loss(NEWEST, place, REFUSAL, REMEDY)

    assert loss is not None
    assert loss.waits
    assert loss.text.startswith(f"cannot train digits: step 1200 (step-0000001200.a3) was committed in {HOME}")
    assert words in loss.text


@pytest.mark.parametrize("mount", [DISK, None])
def test_without_the_newest_on_the_same_file_system_it_was_deleted(mount: str | None) -> None:
    verdict = judged(900, SeenDirectory(HOME, 900, mount))

    assert isinstance(verdict, Older)
    assert verdict.because is OlderBecause.DELETED
    assert verdict.text.endswith("it is gone; the newest one that is left is of step 900")


@pytest.mark.parametrize(
    ("place", "decisions", "because"),
    [
        (SeenDirectory(HOME, None, ROOT), Decisions(begin_at=900), OlderBecause.OPERATOR),
        (SeenDirectory(HOME, None, ROOT), Decisions(begin_at=0), OlderBecause.OPERATOR),
        (SeenDirectory(HOME, 1200, DISK), Decisions(suspects=(NEWEST.name,)), OlderBecause.SUSPECT),
        (SeenDirectory(HOME, 1200, DISK), Decisions(unfit=(NEWEST.name,)), OlderBecause.UNFIT),
        (SeenDirectory(HOME, 1200, DISK), Decisions(restore_below_step=1000), OlderBecause.ROLLED_BACK),
        *(
            (SeenDirectory(HOME, 900, DISK, RejectedCheckpoint(NEWEST.name, "why", because)), Decisions(), because)
            for because in (OlderBecause.DAMAGED, OlderBecause.UNREADABLE, OlderBecause.LEFT_BEHIND)
        ),
    ],
)
def test_an_older_start_has_its_reason(place: SeenDirectory, decisions: Decisions, because: OlderBecause) -> None:
    verdict = judged(900, place, decisions)

    assert isinstance(verdict, Older)
    assert verdict.because is because


@pytest.mark.parametrize(
    "decisions",
    [Decisions(), Decisions(restore_below_step=5000), Decisions(suspects=("step-0000000900.a3",))],
    ids=["none", "a rollback of later steps", "an older suspect"],
)
def test_a_choice_that_passes_over_the_newest_without_a_reason_waits(decisions: Decisions) -> None:
    assert isinstance(judged(900, SeenDirectory(HOME, 1200, DISK), decisions), Unexplained)


@pytest.mark.parametrize("decisions", [Decisions(suspects=(NEWEST.name,)), Decisions(restore_below_step=1000)])
def test_a_decision_does_not_excuse_a_disk_that_is_not_mounted(decisions: Decisions) -> None:
    assert isinstance(judged(900, SeenDirectory(HOME, 900, ROOT), decisions), Unexplained)


@pytest.mark.parametrize(
    ("decisions", "because"),
    [
        (Decisions(restore_below_step=1200), OlderBecause.ROLLED_BACK),
        (Decisions(suspects=(NEWEST.name,)), OlderBecause.SUSPECT),
        (Decisions(unfit=(NEWEST.name,)), OlderBecause.UNFIT),
    ],
)
def test_what_only_the_mirror_has_is_passed_over_for_the_same_reasons(
    decisions: Decisions, because: OlderBecause
) -> None:
    newest, place = replace(NEWEST, mirror="s3://b/digits", epoch=2), SeenDirectory(HOME, 900, DISK)

    verdict = judge(newest, 900, place, decisions, REFUSAL, REMEDY)

    assert isinstance(verdict, Older) and verdict.because is because
    for chosen, other in ((900, Decisions(restore_below_step=1300)), (None, decisions)):
        assert isinstance(judge(newest, chosen, place, other, REFUSAL, REMEDY), Unexplained)


def test_a_divergence_does_not_excuse_the_loss_of_what_a_later_attempt_has_saved() -> None:
    place = SeenDirectory(HOME, 1200, DISK)
    earlier, own = (Decisions(restore_below_step=1000, diverged_attempt=attempt) for attempt in (2, 3))

    assert isinstance(judged(900, place, earlier), Unexplained)
    assert isinstance(judged(900, place, own), Older)


SUSPECT_FROM_BEFORE = Decisions(suspects=("step-0000001500.a2",))  # passed over, and NEWEST was saved behind it


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (
            SeenDirectory(HOME, 1500, ROOT),
            "but the folder is now on ext4 at / and its newest checkpoint is of step 900",
        ),
        (SeenDirectory("/data/digit", 1500, DISK), "checkpoint_dir is now /data/digit, which has step 900"),
    ],
    ids=["an old copy below the mount point", "another run's folder"],
)
def test_a_suspect_from_before_does_not_excuse_that_what_was_saved_since_is_away(
    place: SeenDirectory, words: str
) -> None:
    verdict = judged(900, place, SUSPECT_FROM_BEFORE)

    assert isinstance(verdict, Unexplained)
    assert words in verdict.text


def test_what_was_saved_behind_a_suspect_and_is_gone_was_deleted_and_is_not_the_suspect() -> None:
    verdict = judged(900, SeenDirectory(HOME, 1500, DISK), SUSPECT_FROM_BEFORE)

    assert isinstance(verdict, Older)
    assert verdict.because is OlderBecause.DELETED
    assert "the newest one that is left is of step 900" in verdict.text


@pytest.mark.parametrize(
    ("decisions", "because", "words"),
    [
        (Decisions(restore_below_step=1100), OlderBecause.ROLLED_BACK, "which is given up, as training diverged"),
        (NOTHING_DECIDED, OlderBecause.DAMAGED, "which is in quarantine: nobody could write it down"),
    ],
)
def test_what_is_in_quarantine_without_a_reason_is_not_called_damaged(
    decisions: Decisions, because: OlderBecause, words: str
) -> None:
    aside = RejectedCheckpoint(NEWEST.name, "nobody could write it down", is_recorded=False)
    verdict = judged(900, SeenDirectory(HOME, 900, DISK, aside), decisions)

    assert isinstance(verdict, Older)
    assert verdict.because is because
    assert verdict.text.endswith(words)


def test_nothing_but_an_operator_begins_anew() -> None:
    in_quarantine = SeenDirectory(HOME, None, DISK, RejectedCheckpoint(NEWEST.name, "damaged"))

    assert isinstance(judged(None, in_quarantine), Unexplained)
    assert isinstance(judged(None, in_quarantine, Decisions(begin_at=0)), Older)


def test_a_checkpoint_in_quarantine_from_before_a_rollback_explains_nothing() -> None:
    old = RejectedCheckpoint("step-0000001500.a2", "training diverged", OlderBecause.ROLLED_BACK)
    of_this = RejectedCheckpoint("step-0000001200.a3.2", "damaged")
    expected = CheckpointName(1200, 3)

    assert find_passed_over(expected, [old]) is None
    assert find_passed_over(expected, [old, of_this]) is of_this


@pytest.mark.parametrize("place", [SeenDirectory(HOME, 1100, ROOT), SeenDirectory("/data/new", 1100, DISK)])
def test_what_another_run_left_in_another_place_explains_nothing(place: SeenDirectory) -> None:
    """A disk was mounted over the run, or checkpoint_dir has another letter: there, a later checkpoint is damaged."""
    other = RejectedCheckpoint("step-0000001500.a7", "damaged", OlderBecause.DAMAGED)
    copied = RejectedCheckpoint(NEWEST.name, "damaged", OlderBecause.DAMAGED)

    assert isinstance(judged(1100, replace(place, passed_over=other)), Unexplained)
    assert isinstance(judged(1100, replace(place, passed_over=copied)), Older)
    assert isinstance(judged(1100, SeenDirectory(HOME, 1100, DISK, other)), Older)


@pytest.mark.parametrize(
    ("refused", "explains"),
    [
        ("step-0000001200.a3", (True, True)),
        ("step-0000001200.a3.2", (True, True)),
        ("step-0000001300.a5", (False, True)),  # it took its place, and the retention deleted the newest
        ("step-0000001300.a3", (False, False)),  # given up before attempt 4 began from the newest
    ],
)
def test_what_was_given_up_before_the_newest_was_restored_does_not_explain_where_that_is(
    refused: str, explains: tuple[bool, bool]
) -> None:
    """`explains`: where the folder is on another disk, and where it is on the same."""
    newest = replace(NEWEST, since=4)
    refusal = RejectedCheckpoint(refused, "training diverged", OlderBecause.ROLLED_BACK)
    elsewhere, here = SeenDirectory(HOME, 900, ROOT, refusal), SeenDirectory(HOME, 900, DISK, refusal)
    by_place = [judge(newest, 900, place, NOTHING_DECIDED, REFUSAL, REMEDY) for place in (elsewhere, here)]

    assert [isinstance(verdict, Older) and verdict.because is refusal.because for verdict in by_place] == [*explains]
    if not explains[0]:
        assert isinstance(by_place[0], Unexplained)
    if not explains[1]:
        assert isinstance(by_place[1], Older) and by_place[1].because is OlderBecause.DELETED


def test_a_revision_grows_with_changes_only() -> None:
    account = ProgressAccount().changed_to(NEWEST)

    assert (account.revision, account.changed_to(NEWEST).revision, account.changed_to(None).revision) == (1, 1, 2)


NAMES = st.builds(CheckpointName, st.integers(0, 2000), st.integers(1, 5)).map(str)


@given(
    chosen=st.none() | st.integers(0, 2000),
    directory=st.sampled_from([HOME, "/data/new"]),
    highest=st.none() | st.integers(0, 2000),
    mount=st.sampled_from([None, DISK, ROOT]),
    passed_over=st.none() | st.builds(RejectedCheckpoint, NAMES, st.text(max_size=5), st.sampled_from(OlderBecause)),
    decisions=st.builds(
        Decisions,
        st.none() | st.integers(0, 2000),
        st.none() | st.integers(0, 2000),
        st.lists(NAMES, max_size=2),
        st.lists(NAMES, max_size=2),
        st.none(),
        st.none() | st.integers(1, 5),
    ),
)
def test_an_older_start_always_has_evidence(
    chosen: int | None,
    directory: str,
    highest: int | None,
    mount: str | None,
    passed_over: RejectedCheckpoint | None,
    decisions: Decisions,
) -> None:
    place = SeenDirectory(directory, highest, mount, passed_over)

    verdict = judged(chosen, place, decisions)

    is_behind = chosen is None or chosen < NEWEST.step
    assert isinstance(verdict, Newest) is not is_behind
    if not isinstance(verdict, Older):
        return
    explanation = find_explanation(NEWEST, place)  # what was given up in an earlier attempt is none
    names = [parse_name(name) for name in (*decisions.suspects, *decisions.unfit)]
    is_named = any(name is not None and name.step >= NEWEST.step for name in names)
    match verdict.because:
        case OlderBecause.OPERATOR if explanation is None or decisions.begin_at in (0, chosen):
            assert decisions.begin_at in (0, chosen)
            return
        case OlderBecause.DELETED if explanation is None:
            assert (directory, mount) != (HOME, ROOT)
            assert directory == HOME
        case OlderBecause.SUSPECT | OlderBecause.UNFIT if explanation is None:
            assert is_named
            assert highest is not None
            assert highest >= NEWEST.step
        case OlderBecause.ROLLED_BACK if explanation is None:
            assert decisions.restore_below_step is not None
            assert decisions.restore_below_step <= NEWEST.step
            assert (decisions.diverged_attempt or 5) >= 3
        case because:
            assert explanation is not None
            assert because in (explanation.because, OlderBecause.DAMAGED)
    assert chosen is not None


@pytest.mark.parametrize("chosen", [900, None])
@pytest.mark.parametrize("knows", [1200, 1300])
def test_what_the_chiefs_node_says_explains_an_older_one(chosen: int | None, knows: int) -> None:
    stated = StatedReason(OlderBecause.ROLLED_BACK, "given up, as training diverged", knows)
    verdict = judged(chosen, SeenDirectory(HOME, chosen), Decisions(stated=stated))

    assert isinstance(verdict, Older)
    assert verdict.because is OlderBecause.ROLLED_BACK
    assert "as the chief's node decided: given up" in verdict.text


def test_chiefs_node_that_does_not_know_the_newest_explains_nothing() -> None:
    """Here the mirror had it: a list that leaves it out, or a ledger of long ago, is no reason to train without it."""
    newest = ReportedCheckpoint(1200, NEWEST.name, HOME, mirror="s3://m/j", epoch=1)
    for stated in (None, StatedReason(OlderBecause.SUSPECT, "", 1100)):
        verdict = judge(newest, 900, SeenDirectory(HOME, 900), Decisions(stated=stated), REFUSAL, REMEDY)
        assert isinstance(verdict, Unexplained)
        assert "its mirror s3://m/j has it, but it is not here" in verdict.text
