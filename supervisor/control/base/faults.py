"""The faults of Supervisor's XML-RPC interface, and which of them a refused command becomes."""

from enum import IntEnum

from supervisor.control.base.errors import Code, CommandError


class FaultCode(IntEnum):
    """Numbers of API version 3.0. SUCCESS is only for results of several programs."""

    UNKNOWN_METHOD = 1
    INCORRECT_PARAMETERS = 2
    BAD_ARGUMENTS = 3
    SIGNATURE_UNSUPPORTED = 4
    SHUTDOWN_STATE = 6
    BAD_NAME = 10
    BAD_SIGNAL = 11
    NO_FILE = 20
    NOT_EXECUTABLE = 21
    FAILED = 30
    ABNORMAL_TERMINATION = 40
    SPAWN_ERROR = 50
    ALREADY_STARTED = 60
    NOT_RUNNING = 70
    SUCCESS = 80
    ALREADY_ADDED = 90
    STILL_RUNNING = 91
    CANT_REREAD = 92


class RpcFault(Exception):
    """A call that was not carried out; the text begins with the fault's name, as Supervisor's clients expect."""

    def __init__(self, code: FaultCode, detail: str | None = None) -> None:
        super().__init__(code.name if detail is None else f"{code.name}: {detail}")
        self.code = code


_NOT_ALIKE: dict[Code, FaultCode] = {
    Code.NOT_A_JOB: FaultCode.BAD_NAME,
    Code.UNKNOWN_COMMAND: FaultCode.UNKNOWN_METHOD,
    Code.FORBIDDEN: FaultCode.FAILED,  # the one whose text stock clients show as it is
}


def fault_of(error: CommandError) -> RpcFault:
    """The fault for a command's refusal: mostly the one of the same name."""
    code = _NOT_ALIKE.get(error.code)
    return RpcFault(FaultCode[error.code.name] if code is None else code, str(error))
