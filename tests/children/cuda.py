"""Kernels of a few instructions, by CUDA's driver alone: one that touches memory that is not mapped, one that waits on
the GPU, and one that computes there. In the context that TensorFlow has, so that what happens to one concerns both."""

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

_HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
_FAULT = """
.visible .entry fault() {
  .reg .u64 %a; .reg .u32 %v;
  mov.u64 %a, 0x7f0000000000;
  mov.u32 %v, 1;
  st.global.u32 [%a], %v;
  ret;
}
"""
_SPIN = """
.visible .entry spin(.param .u64 ns) {
  .reg .u64 %since, %now, %limit; .reg .pred %goes_on;
  ld.param.u64 %limit, [ns];
  mov.u64 %since, %globaltimer;
AGAIN:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %since;
  setp.lt.u64 %goes_on, %now, %limit;
  @%goes_on bra AGAIN;
  ret;
}
"""
_COMPUTE = """
.visible .entry compute(.param .u64 ns, .param .u64 memory, .param .u64 bytes) {
  .reg .u64 %since, %now, %limit, %base, %at, %size, %stride; .reg .u32 %a, %b, %c; .reg .u32 %v; .reg .pred %p;
  ld.param.u64 %limit, [ns];
  ld.param.u64 %base, [memory];
  ld.param.u64 %size, [bytes];
  mov.u32 %a, %ctaid.x; mov.u32 %b, %ntid.x; mov.u32 %c, %tid.x;
  mad.wide.u32 %at, %a, %b, 0;
  cvt.u64.u32 %stride, %c;
  add.u64 %at, %at, %stride;
  shl.b64 %at, %at, 2;
  mov.u64 %stride, 1048576;
  mov.u64 %since, %globaltimer;
AGAIN:
  add.u64 %at, %at, %stride;
  setp.ge.u64 %p, %at, %size;
  @%p sub.u64 %at, %at, %size;
  add.u64 %now, %base, %at;
  ld.volatile.global.u32 %v, [%now];
  add.u32 %v, %v, 1;
  st.volatile.global.u32 [%now], %v;
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %since;
  setp.lt.u64 %p, %now, %limit;
  @%p bra AGAIN;
  ret;
}
"""
_THREADS = 1024  # of a block
_BLOCKS = 256  # with their threads' four bytes each: one stride
_BYTES = 4 << 30


class CudaError(Exception):
    """The driver answered with a number."""


class Kernels:
    """On GPU 0."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        device, context = c_int(), c_void_p()
        self._call("cuInit", c_uint(0))
        self._call("cuDeviceGet", byref(device), c_int(0))
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def fault(self) -> None:
        """Writes to memory that is not mapped. Raises CudaError; nothing can be done in this process any more."""
        self._run(_FAULT, "fault", 1, 1)

    def spin(self, for_s: float) -> None:
        """One thread looks at the clock until then."""
        self._run(_SPIN, "spin", 1, 1, c_uint64(int(for_s * 1e9)))

    def compute(self, for_s: float) -> None:
        """A quarter of a million threads change 4 GiB of memory until then."""
        memory = c_uint64()
        self._call("cuMemAlloc_v2", byref(memory), c_size_t(_BYTES))
        self._run(_COMPUTE, "compute", _BLOCKS, _THREADS, c_uint64(int(for_s * 1e9)), memory, c_uint64(_BYTES))

    def _run(self, code: str, name: str, blocks: int, threads: int, *values: c_uint64) -> None:
        module, function = c_void_p(), c_void_p()
        self._call("cuModuleLoadData", byref(module), c_char_p((_HEAD + code).encode()))
        self._call("cuModuleGetFunction", byref(function), module, c_char_p(name.encode()))
        pointers = (c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        one, none = c_uint(1), c_void_p()
        size = (c_uint(blocks), one, one, c_uint(threads), one, one)
        self._call("cuLaunchKernel", function, *size, c_uint(0), none, pointers, none)
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: object) -> None:
        if number := getattr(self._driver, name)(*arguments):
            raise CudaError(f"{name}: {number}")
