"""Whether a configuration can be trained on several nodes."""

from supervisor.config.load import Config
from supervisor.protocol import allocation
from supervisor.protocol.allocation import AllocationError
from supervisor.protocol.plurals import counted


def refuse_several_nodes(config: Config, nodes: int) -> None:
    """Raises AllocationError if the configuration can't use so many nodes."""
    if nodes == 1:
        return
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
