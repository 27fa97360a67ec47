"""Why a request was not carried out, in Supervisor's fault names where it has one."""

from enum import Enum


class Code(Enum):
    """The name of the fault, and the HTTP status that carries it."""

    BAD_ARGUMENTS = 400
    NOT_A_JOB = 4001
    BAD_SIGNAL = 4002
    UNAUTHORIZED = 401
    FORBIDDEN = 403
    UNKNOWN_COMMAND = 404
    BAD_NAME = 4041
    ALREADY_STARTED = 409
    NOT_RUNNING = 4091
    ALREADY_ADDED = 4092
    STILL_RUNNING = 4093
    NOT_SAVED = 4094
    NOT_PROVEN = 4095
    NO_FILE = 4221
    NOT_EXECUTABLE = 4222
    SPAWN_ERROR = 4223
    ABNORMAL_TERMINATION = 4224
    FAILED = 4225
    CANT_REREAD = 4226
    WAITING = 4227
    SHUTDOWN_STATE = 503

    @property
    def http_status(self) -> int:
        """The first three digits; the fourth only tells names of one status apart."""
        return int(str(self.value)[:3])


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
