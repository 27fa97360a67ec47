"""What Slurm's variables say, and what is refused in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol import allocation
from supervisor.protocol.allocation import AllocationError

THREE = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_NTASKS": "3", "SLURM_JOB_NODELIST": "n[1-3]"}
NODES = ("n1", "n2", "n3")


def test_a_node_finds_its_place():
    place = allocation.read_allocation({**THREE, "SLURM_RESTART_COUNT": "2"}, NODES)

    assert (place.job_id, place.rank, place.size, place.restarts) == (7, 1, 3, 2)
    assert place.generation == 2001
    assert place.describe(2) == "rank 2 (n3)"


def test_the_batch_script_names_the_generation():
    assert allocation.read_allocation({**THREE, allocation.GENERATION: "2005"}, NODES).generation == 2005


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JOB_ID", "seven"),
        ("SLURM_JOB_ID", "-7"),
        ("SLURM_JOB_ID", "\u0667"),
        ("SLURM_PROCID", "3"),
        ("SLURM_PROCID", "9" * 400),
        ("SLURM_NTASKS", "4"),
        ("SLURM_RESTART_COUNT", "1e3"),
        (allocation.GENERATION, ""),
    ],
)
def test_a_variable_that_can_not_be_right_is_named(name: str, value: str):
    with pytest.raises(AllocationError, match=name if name != "SLURM_NTASKS" else "4 tasks on 3 nodes"):
        allocation.read_allocation({**THREE, name: value}, NODES)


@pytest.mark.parametrize("text", ["", "--version", "n[1-3]" * 100_000, "nöd"])
def test_a_hostile_node_list_reaches_no_command(text: str):
    with pytest.raises(AllocationError, match="SLURM_JOB_NODELIST"):
        allocation.compressed_nodes({"SLURM_JOB_NODELIST": text})


@pytest.mark.parametrize(
    "printed", ["", "n1\nn1", "n1\n-v", "n1\n../x", "\n".join(f"n{number}" for number in range(2000))]
)
def test_names_that_are_no_hosts_are_refused(printed: str):
    with pytest.raises(AllocationError):
        allocation.parse_nodes(printed)


def test_the_nodes_of_a_step_are_its_own_as_a_job_can_lose_some():
    variables = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_STEP_NODELIST": "n[1,3]"}
    assert allocation.compressed_nodes(variables, of_step=True) == "n[1,3]"
    assert allocation.compressed_nodes(variables) == "n[1-3]"
    assert allocation.compressed_nodes({"SLURM_JOB_NODELIST": "n1"}, of_step=True) == "n1"


@given(st.integers(0, 10**12), st.integers(0, 255))
def test_a_verdict_is_read_as_it_was_written_and_only_of_its_generation(generation: int, status: int):
    text = allocation.verdict_text(generation, status)
    assert allocation.parse_verdict(text, generation) == status
    assert allocation.parse_verdict(text, generation + 1) is None


@given(st.text())
def test_any_other_text_is_no_verdict(text: str):
    verdict = allocation.parse_verdict(text, 7)
    assert verdict is None or text == allocation.verdict_text(7, verdict)


def test_secrets_stay_between_the_daemons():
    variables = {"PATH": "/bin", allocation.SECRET: "x", allocation.GENERATION: "1", allocation.VERDICT: "/x"}
    assert allocation.without_secrets(variables) == {"PATH": "/bin"}


PODS = {
    allocation.NODES: "d-node-0-0.d,d-node-0-1.d",
    allocation.RANK: "1",
    allocation.RESTARTS: "3",
    allocation.SECRET: "0123456789abcdef",
}


def test_a_pod_finds_its_place_in_a_jobset_and_each_restart_is_a_generation():
    place = allocation.read_jobset(PODS)

    assert (place.rank, place.nodes, place.generation) == (1, ("d-node-0-0.d", "d-node-0-1.d"), 3001)
    assert place.lowest_attempt == 3001


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (allocation.NODES, ""),
        (allocation.NODES, "d-0,d-0"),
        (allocation.NODES, "d-0,-v"),
        (allocation.NODES, ",".join(f"d-{number}" for number in range(2000))),
        (allocation.RANK, "2"),
        (allocation.RANK, ""),
        (allocation.RESTARTS, "-1"),
        (allocation.SECRET, "short"),
    ],
)
def test_what_a_manifest_says_wrongly_is_named(name: str, value: str):
    with pytest.raises(AllocationError, match=name):
        allocation.read_jobset({**PODS, name: value})


def test_one_pod_needs_no_secret():
    alone = {**PODS, allocation.NODES: "d-node-0-0.d", allocation.RANK: "0", allocation.SECRET: ""}

    assert allocation.read_jobset(alone).size == 1


@pytest.mark.parametrize(
    ("rank", "level"),
    [("", "debug"), ("0", "debug"), ("1", "warn"), ("7", "warn"), ("8", None), ("511", None), ("x", "debug")],
)
def test_the_daemons_of_few_ranks_write_to_the_output_that_all_share(rank: str, level: str | None):
    assert allocation.output_level({"SLURM_PROCID": rank}) == level
