"""Nobody can read this process's environment: its memory is locked for as long as a file system does not answer.

Argument: a file that can be opened, and whose reads get no answer. A child reads this process's memory where that is
mapped, and waits with the lock held for reading. This process then waits to have it for writing, and so everybody who
comes later waits behind that. Prints a line just before.
"""

import ctypes
import mmap
import os
import sys
import time

PR_SET_PTRACER, ANY = 0x59616D61, ctypes.c_ulong(-1)  # linux/prctl.h: the child may read it under Yama, too

name, pid = sys.argv[1], os.getpid()
ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANY)
mapped = mmap.mmap(os.open(name, os.O_RDONLY), 4096, prot=mmap.PROT_READ)
with open("/proc/self/maps") as maps:
    place = int(next(line for line in maps if name in line).split("-")[0], 16)
reader = os.fork()
if reader == 0:
    os.pread(os.open(f"/proc/{pid}/mem", os.O_RDONLY), 1, place)
    os._exit(0)
waits_in = ""
while "request_wait_answer" not in waits_in:
    time.sleep(0.01)
    with open(f"/proc/{reader}/wchan") as file:
        waits_in = file.read()
os.write(1, b"locked\n")
mmap.mmap(-1, 1 << 20)
