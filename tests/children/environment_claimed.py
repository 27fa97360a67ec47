"""Says that its environment is a terabyte of its memory, which it never touched (PR_SET_MM_MAP of prctl(2))."""

import ctypes
import struct
import sys
from pathlib import Path

PR_SET_MM, PR_SET_MM_MAP = 35, 14
PROT_READ, MAP_PRIVATE_ANONYMOUS, MAP_NORESERVE = 1, 0x22, 0x4000
SIZE = 1 << 40
NO_FILE = 0xFFFF_FFFF

libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
begin = libc.mmap(None, SIZE, PROT_READ, MAP_PRIVATE_ANONYMOUS | MAP_NORESERVE, -1, 0)
status = Path("/proc/self/stat").read_text().rpartition(")")[2].split()


def field(number: int) -> int:
    """Of proc_pid_stat(5)."""
    return int(status[number - 3])


code, data, heap, stack = (field(26), field(27)), (field(45), field(46)), (field(47), libc.sbrk(0)), field(28)
claimed = struct.pack("=11QQII", *code, *data, *heap, stack, field(48), field(49), begin, begin + SIZE, 0, 0, NO_FILE)
if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.c_char_p(claimed), ctypes.c_size_t(len(claimed)), ctypes.c_ulong(0)):
    sys.exit(f"refused: error {ctypes.get_errno()}")
print("claimed", flush=True)
sys.stdin.read()
