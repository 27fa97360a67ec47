"""The worker's end of a control pipe, for tests of the daemon's: says hello, repeats the orders it hears as progress.

Arguments: the folder of the pipes, the attempt. Ends after an order to identify itself.
"""

import os
import sys
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.wire.lines import Decoder, encode_message
from supervisor.protocol.wire.messages import PROTOCOL, Done, Flush, Go, Hello, Identify, Progress


def main(folder: Path, attempt: int) -> None:
    orders = os.open(folder / layout.TO_WORKER, os.O_RDWR)
    answers = os.open(folder / layout.FROM_WORKER, os.O_RDWR)
    os.write(answers, encode_message(Hello(attempt, PROTOCOL, os.getpid(), "test")))
    decoder = Decoder()
    while True:
        for order in decoder.feed(os.read(orders, 4096)):
            if isinstance(order, Go):
                os.write(answers, encode_message(Progress(attempt, 0)))
            elif isinstance(order, Flush):
                os.write(answers, encode_message(Progress(attempt, order.id)))
            elif isinstance(order, Identify):
                os.write(answers, encode_message(Done(attempt, 9)))
                return


main(Path(sys.argv[1]), int(sys.argv[2]))
