"""Why a request was not carried out, in Supervisor's fault names where it has one."""

from enum import Enum


class Code(Enum):
    """The name of the fault, and the HTTP status that carries it."""

    http_status: int

    def __new__(cls, http_status: int) -> "Code":
        """A member; its value tells it from others of the same status."""
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        member.http_status = http_status
        return member

    BAD_ARGUMENTS = 400
    NOT_A_JOB = 400
    BAD_SIGNAL = 400
    UNAUTHORIZED = 401
    FORBIDDEN = 403
    UNKNOWN_COMMAND = 404
    BAD_NAME = 404
    ALREADY_STARTED = 409
    NOT_RUNNING = 409
    ALREADY_ADDED = 409
    STILL_RUNNING = 409
    NOT_SAVED = 409
    CANT_RESTART = 409
    NOT_PROVEN = 409
    NO_FILE = 422
    NOT_EXECUTABLE = 422
    SPAWN_ERROR = 422
    ABNORMAL_TERMINATION = 422
    FAILED = 422
    CANT_REREAD = 422
    WAITING = 422
    SHUTDOWN_STATE = 503


class RequestFailed(Exception):
    """A request that was not carried out. `fault`: the name of the reason; the text is for people."""

    fault: str


class CommandError(RequestFailed):
    """A command of our own API that was not carried out: which fault, and what a person should know."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.fault = code.name


def internal_error(error: Exception) -> str:
    """The message for a client when supervisord itself failed."""
    return f"supervisord met an internal error ({error!r}); see its log: supervisorctl maintail -10000"
