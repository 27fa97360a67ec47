"""Prints numbered lines, each at once, until the file named by its argument exists; then says how many they were."""

import sys
import time
from itertools import count
from pathlib import Path

stop = Path(sys.argv[1])
for number in count(1):
    if stop.exists():
        break
    print(f"line {number:09d}", flush=True)
    time.sleep(0.0005)
stop.with_suffix(".printed").write_text(str(number - 1))
