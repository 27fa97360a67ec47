"""Whether a configuration can be trained on the nodes that the job got, and on how many of them."""

from supervisor.config.load import Config
from supervisor.protocol import allocation
from supervisor.protocol.allocation import AllocationError
from supervisor.protocol.plurals import counted


def training_nodes(config: Config, nodes: int) -> int:
    """How many of `nodes` train; the others are spare. Raises AllocationError if the configuration can't use them."""
    wanted = max((program.job.nodes or 0 for program in config.programs.values() if program.job is not None), default=0)
    is_jobset = config.supervisord.engine == "jobset"
    if wanted > nodes:
        how = "set parallelism, completions and STEPKEEPER_NODES of the manifest to" if is_jobset else "start it with"
        number = f"{wanted} pods" if is_jobset else f"sbatch --nodes={wanted}"
        raise AllocationError(
            f"cannot train on {counted(nodes, 'node')}: nodes = {wanted} in the job's section asks for {wanted} at "
            f"least; {how} {number} or more, or lower nodes"
        )
    if is_jobset and 0 < wanted < nodes:
        _require_shared_folders(config)
    if nodes == 1:
        return 1
    cannot = f"cannot train on {nodes} nodes"
    if len(config.programs) != 1:
        raise AllocationError(
            f"{cannot}: there are {counted(len(config.programs), 'program')}, and all nodes train one; "
            f"leave one [program:x] in the file, or train on one"
        )
    (program,) = config.programs.values()
    if program.job is None or program.job.strategy != "multiworker":
        raise AllocationError(f"{cannot}: set strategy = multiworker in [program:{program.name}], or train on one node")
    if program.job.workers is not None:
        raise AllocationError(f"{cannot}: workers is for several processes of one host; delete it, or train on one")
    if allocation.CLUSTER in {**config.supervisord.environment, **program.environment}:
        raise AllocationError(f"{cannot}: environment sets {allocation.CLUSTER}, which the nodes decide; delete it")
    return wanted or nodes


def has_own_folders(config: Config) -> bool:
    """Whether each node keeps what it writes in a folder of its own."""
    return any(
        program.job is not None and not program.job.checkpoint_dir_shared for program in config.programs.values()
    )


def _require_shared_folders(config: Config) -> None:
    """A spare pod goes on from what another one has saved, and a pod that is replaced begins with empty folders."""
    state = config.supervisord.state_dir
    for job in (program.job for program in config.programs.values() if program.job is not None):
        if job.checkpoint_dir_shared and (folder := job.checkpoint_dir).is_relative_to(state):
            raise AllocationError(
                f"cannot keep spare pods: checkpoint_dir {folder} lies in the state_dir {state}, which is each pod's "
                f"own; name a folder that all pods see, or set checkpoint_dir_shared = false and a mirror, or delete "
                f"nodes and start no more pods than train"
            )
