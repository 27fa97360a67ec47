"""An event listener that writes down what it gets, byte for byte, in Supervisor's protocol and nothing else.

LOG: one JSON object a line, `headers` and `payload`. ANSWERS: what it answers to its first events, separated by commas:
`FAIL`, `die` (ends while it is busy), `nonsense`, `hang`, `late` (OK, after four seconds); after
them OK. Counted in a file, so over restarts.
"""

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Reads until its input ends."""
    log, scripted = Path(sys.argv[1]), [word for word in os.environ.get("ANSWERS", "").split(",") if word]
    while True:
        sys.stdout.buffer.write(b"READY\n")
        sys.stdout.buffer.flush()
        header = sys.stdin.buffer.readline()
        if not header:
            return
        headers = dict(part.split(":", 1) for part in header.decode().split())
        payload = sys.stdin.buffer.read(int(headers["len"]))
        with log.open("a") as file:
            file.write(json.dumps({"headers": headers, "payload": payload.decode()}) + "\n")
        with log.open() as file:
            taken = sum(1 for _ in file)
        answer(scripted[taken - 1] if taken <= len(scripted) else "OK")


def answer(word: str) -> None:
    """One answer, or what a listener should not do."""
    if word == "die":
        os._exit(1)
    if word == "hang":
        time.sleep(3600)
    if word == "late":
        time.sleep(4)
    result = b"OK" if word not in ("FAIL",) else b"FAIL"
    line = b"nonsense\n" if word == "nonsense" else b"RESULT %d\n%s" % (len(result), result)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
