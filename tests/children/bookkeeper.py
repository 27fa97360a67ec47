"""Writes to a ledger for ever, as a daemon does, and says after each attempt that is surely on the disk which it was.

Argument: the ledger's file. For tests that kill it.
"""

import sys
import time
from itertools import count
from pathlib import Path

from supervisor.host.ledger.ledger import Ledger

ledger = Ledger(Path(sys.argv[1]))
for attempt in count(1):
    ledger.wanted.record_wanted("digits", True)
    ledger.attempts.attempt_started("digits", attempt, 1000 + attempt, 5, time.time())
    ledger.attempts.attempt_restored("digits", attempt, None, 0)
    ledger.attempts.attempt_ended("digits", attempt, "crash", "killed", None, 9, attempt, time.time())
    ledger.attempts.last_attempts()  # waits for the writes before it
    print(attempt, flush=True)
