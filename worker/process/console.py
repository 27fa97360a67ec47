"""What a worker without a daemon tells the person before it: one line on stderr for what matters."""

from supervisor.protocol.messages import Committed, Done, Failed, FromWorker, Progress, Restored, SaveFailed
from worker.process.user_messages import print_message


class ConsoleReporter:
    """Says on stderr what a daemon would be told."""

    def send_message(self, message: FromWorker) -> None:
        """One line for what a person wants to know."""
        line = _line(message)
        if line is not None:
            self.show_message(line)

    def send_progress(self, message: Progress) -> None:
        """Nothing: the script shows its own progress."""

    def show_message(self, text: str) -> None:
        """One line as it is."""
        print_message(text)

    def drain(self, timeout: float) -> bool:
        """Nothing waits."""
        return True


def _line(message: FromWorker) -> str | None:
    match message:
        case Restored(checkpoint=None):
            return "begins at step 0"
        case Restored():
            odd = f"; not accounted for: {', '.join(message.unmatched)}" if message.unmatched else ""
            return f"restored {message.checkpoint} in {message.restore_s:.2f} s{odd}"
        case Committed():
            return f"saved {message.checkpoint} ({message.size_bytes / 1e6:.1f} MB in {message.save_s:.2f} s)"
        case SaveFailed():
            return f"cannot save step {message.step}: {message.error}"
        case Failed(traceback=""):  # else Python shows the exception itself
            return message.error
        case Done():
            return f"done at step {message.step}"
    return None
