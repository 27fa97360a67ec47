"""What waits to be written into the ledger.

All programs share the queue and the file, so each has a quota in both: a program whose worker makes records without end
loses its own, and no other's. What operators want has no limit: no worker can make such records.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

QUEUED_WRITES = 10_000  # about 5 MB; on a disk that stays full, later writes are lost and counted
QUEUED_OF_ONE, QUEUED_BYTES_OF_ONE = 1000, 1 << 20  # of one program: a tenth
QUEUED_FOR_SURE = 100  # of a program with fewer in the queue, one more is taken even if others have filled it

Value = str | int | float | None | Callable[[], str]
"""A function gives its value when the statement is written, in the ledger's thread, and again when that is repeated."""
Statement = tuple[str, tuple[Value, ...]]
QueuedStatement = tuple[str, tuple[Value, ...], str | None, int]
"""With the program whose record it is, and its bytes."""


@dataclass(slots=True)
class _Share:
    """What one program has in the queue, and how many of its records were left out. `unpruned`: rows that it added."""

    records: int = 0
    size_bytes: int = 0
    left_out: int = 0
    unpruned: int = 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether one more record is within the program's quota; the first always is."""
        fits = self.size_bytes + size_bytes <= QUEUED_BYTES_OF_ONE or not self.records
        return fits and self.records < QUEUED_OF_ONE


def queued_statement(sql: str, values: tuple[Value, ...], of: str | None) -> QueuedStatement:
    """A statement as the queue takes it, without lone surrogates: text from outside may hold some, and no database
    accepts them."""
    stored = tuple(value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for value in values)
    return sql, stored, of, sum(len(text) for text in stored if isinstance(text, str))


class WriteQueue:
    """Statements in the order in which they came. Not for two threads at once."""

    def __init__(self) -> None:
        self._statements: deque[QueuedStatement] = deque()
        self._shares: defaultdict[str, _Share] = defaultdict(_Share)

    def __len__(self) -> int:
        return len(self._statements)

    def first(self, count: int) -> list[QueuedStatement]:
        """So many of those that wait, the oldest."""
        return list(islice(self._statements, count))

    def is_within_quota(self, statement: QueuedStatement) -> bool:
        """Whether the program may add one more; if not, that is counted as left out."""
        _, _, of, size = statement
        if of is None or self._shares[of].has_room(size):
            return True
        self._shares[of].left_out += 1
        return False

    def has_room_for(self, statement: QueuedStatement) -> bool:
        """Whether the queue is short enough for one more record of a program, or of none."""
        if (of := statement[2]) is None:
            return len(self._statements) < 3 * QUEUED_WRITES
        is_rare = self._shares[of].records < QUEUED_FOR_SURE
        return len(self._statements) < (2 * QUEUED_WRITES if is_rare else QUEUED_WRITES)

    def append(self, statement: QueuedStatement) -> None:
        """Takes one more, whether there is room or not."""
        sql, _, of, size = statement
        if of is not None:
            share = self._shares[of]
            share.records += 1
            share.size_bytes += size
            share.unpruned += "INTO checkpoints" in sql or "INTO refusals" in sql
        self._statements.append(statement)

    def remove_first(self, count: int) -> None:
        """Those are written."""
        for _ in range(count):
            _, _, of, size = self._statements.popleft()
            if of is not None:
                self._shares[of].records -= 1
                self._shares[of].size_bytes -= size

    def left_out(self, program: str) -> int:
        """How many records of a program were left out, because it made too many."""
        return self._shares[program].left_out if program in self._shares else 0

    def pop_crowded(self, rows: int) -> dict[str, int]:
        """The programs that have added so many rows since they were last given here, and how many."""
        crowded = {name: share.unpruned for name, share in self._shares.items() if share.unpruned >= rows}
        for name in crowded:
            self._shares[name].unpruned = 0
        return crowded
