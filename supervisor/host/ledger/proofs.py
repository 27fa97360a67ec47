"""The table `proofs`: the newest proof of exactness of each job, and what to clean up after one that is under way.

Both are JSON by the wire's codec. A row is bounded in size before it is written and when it is read: what is in it
comes from a process of the job's user.
"""

import structlog

from supervisor.host.ledger.writer import LedgerWriter, Select
from supervisor.host.proof_process import ScratchFolder
from supervisor.protocol.proof import ProofReport, fit_report
from supervisor.protocol.wire.codec import ProtocolError, decode_record, decode_stored, encode_record, parse_object

MAX_ROW_CHARACTERS = 512 * 1024  # a report within its limits takes a fifth of it

log = structlog.get_logger()


class ProofTable:
    """Access to the table: writes go to the ledger's queue, reads happen in the caller's thread."""

    def __init__(self, writer: LedgerWriter, select: Select) -> None:
        self._writer = writer
        self._select = select

    def store(self, program: str, report: ProofReport) -> None:
        """Stores the proof of a job in the place of the one before. Never waits, never raises."""
        self._writer.enqueue(
            "INSERT INTO proofs (program, content) VALUES (?, ?)"
            " ON CONFLICT (program) DO UPDATE SET content = excluded.content",
            program,
            encode_record(fit_report(report)),
            of=program,
        )

    def begin(self, program: str, scratch: ScratchFolder) -> None:
        """Records what the next daemon has to clean up if this one does not come to it. Never waits, never raises."""
        self._writer.enqueue(
            "INSERT INTO proofs (program, under_way) VALUES (?, ?)"
            " ON CONFLICT (program) DO UPDATE SET under_way = excluded.under_way",
            program,
            encode_record(scratch),
        )

    def end(self, program: str) -> None:
        """Records that it is cleaned up. Never waits, never raises."""
        self._writer.enqueue("UPDATE proofs SET under_way = NULL WHERE program = ?", program)
        self._writer.enqueue("DELETE FROM proofs WHERE program = ? AND content IS NULL", program)

    def load(self) -> dict[str, ProofReport]:
        """The newest proof of each job, without those that can't be decoded. Raises LedgerError."""
        rows = self._select(
            "SELECT program, content FROM proofs WHERE typeof(content) = 'text' AND length(content) <= ?",
            MAX_ROW_CHARACTERS,
        )
        decoded = {str(row["program"]): decode_proof(row["content"]) for row in rows}
        return {program: report for program, report in decoded.items() if report is not None}

    def load_under_way(self) -> dict[str, ScratchFolder]:
        """By job: what an earlier daemon did not come to clean up. Raises LedgerError."""
        rows = self._select("SELECT program, under_way FROM proofs WHERE typeof(under_way) = 'text'")
        folders = dict[str, ScratchFolder]()
        for row in rows:
            try:
                folders[row["program"]] = decode_record(parse_object(row["under_way"]), ScratchFolder, "scratch")
            except ProtocolError as error:
                log.warning("ledger.proof_damaged", damaged=[str(error)], effect="nothing is cleaned up after it")
        return folders


def decode_proof(text: str) -> ProofReport | None:
    """Decodes a proof; None if it is none. A damaged field has its default, which the log says."""
    try:
        report, damaged = decode_stored(parse_object(text), ProofReport, "proof")
    except ProtocolError as error:
        report, damaged = None, (str(error),)
    if damaged:
        effect = "counts as never proven" if report is None else "counts as not known"
        log.warning("ledger.proof_damaged", damaged=damaged, effect=effect)
    return report
