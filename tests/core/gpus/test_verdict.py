"""Whether GPUs can take the next attempt."""

import pytest

from supervisor.core.gpus.verdict import Gpu, GpuVerdict, judge_gpus

FINE = (Gpu(0, "GPU-aaaa", frozenset({7})), Gpu(1, "GPU-bbbb", frozenset({8})))
KNOWN = ("GPU-aaaa", "GPU-bbbb")


def test_memory_of_others_is_not_waited_for_and_ones_own_is():
    assert judge_gpus(FINE, KNOWN, None, {9}) == GpuVerdict()
    assert "GPU 1 by pid 8" in (judge_gpus(FINE, KNOWN, None, {8}).waits_because or "")


@pytest.mark.parametrize(
    ("visible", "waits"),
    [(None, True), ("0", False), ("1", True), ("0,1", True), ("GPU-bb", True), ("GPU-aaaa", False), ("", False)],
)
def test_only_what_the_job_sees_counts(visible: str | None, waits: bool):
    assert (judge_gpus(FINE, KNOWN, visible, {8}).waits_because is not None) is waits


def test_as_cuda_does_it_stops_reading_at_what_means_nothing():
    assert judge_gpus(FINE, KNOWN, "0,-1,1", {8}).waits_because is None


def test_a_gpu_in_error_or_gone_is_named_with_what_to_do_unless_the_job_does_not_see_it():
    ill = (Gpu(0, "GPU-aaaa", trouble="GPU is lost"),)

    sick = judge_gpus(ill, KNOWN, None, ()).unusable_because or ""

    assert "GPU 0 (GPU-aaaa): GPU is lost" in sick and "GPU GPU-bbbb is gone" in sick
    assert "nvidia-smi --gpu-reset" in sick and "CUDA_VISIBLE_DEVICES" in sick
    assert "GPU-bbbb" not in (judge_gpus(ill, KNOWN, "GPU-aaaa", ()).unusable_because or "")
    assert judge_gpus(ill, KNOWN, "1", ()).unusable_because is None


def test_job_that_can_do_with_fewer_gets_those_in_order_and_waits_for_their_memory_alone():
    gpus = (*FINE, Gpu(2, "GPU-cccc", frozenset({9}), "GPU is lost"))

    verdict = judge_gpus(gpus, {*KNOWN, "GPU-cccc"}, None, {9}, least=2)

    assert (verdict.visible, verdict.unusable_because, verdict.waits_because) == ("GPU-aaaa,GPU-bbbb", None, None)
    assert verdict.without == "GPU 2 (GPU-cccc): GPU is lost"
    assert judge_gpus(gpus, KNOWN, None, {8}, least=2).waits_because is not None
    assert judge_gpus(FINE, {*KNOWN, "GPU-cccc"}, None, (), least=2).visible == "GPU-aaaa,GPU-bbbb"
    assert judge_gpus(FINE, KNOWN, None, (), least=1) == GpuVerdict(), "nothing is missing"


def test_too_few_are_refused_with_both_numbers_and_parts_of_gpus_are_never_chosen_for_a_job():
    ill = (Gpu(0, "GPU-aaaa"), Gpu(1, "GPU-bbbb", trouble="GPU is lost"))

    assert "1 left, and replicas_min is 2" in (judge_gpus(ill, KNOWN, None, (), least=2).unusable_because or "")
    assert judge_gpus(ill, KNOWN, "1,MIG-1", (), least=0).visible is None
