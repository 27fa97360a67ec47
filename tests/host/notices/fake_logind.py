"""A bus of our own with a logind on it, as far as shutdown locks go; systemd-inhibit, which is not ours, agrees."""

import asyncio
import os
from pathlib import Path

from dbus_fast import Message, MessageType, Variant
from dbus_fast.aio import MessageBus

SERVICE, PATH, INTERFACE = "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
UNIT = "/org/freedesktop/systemd1/unit/stepkeeper_2eservice"
CONFIGURATION = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""


class FakeLogind:
    """logind's side: counts the locks it gave and sees when one is given up."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "bus"
        self._configuration = folder / "bus.conf"
        self._configuration.write_text(CONFIGURATION.format(socket=self._socket))
        self._daemon: asyncio.subprocess.Process | None = None
        self._bus: MessageBus | None = None
        self._locks: list[int] = []
        self._giving: set[asyncio.Task[None]] = set()
        self._was_asked = asyncio.Event()
        self.asked: list[list[str]] = []
        self.is_preparing = False
        self.refuses = False
        self.delay_s = 5.0
        self.stop_usec: int | None = 90_000_000
        self.main_pid = os.getpid()

    @property
    def address(self) -> str:
        """Of the bus."""
        return f"unix:path={self._socket}"

    def _service(self, message: Message) -> Message | None:
        """systemd's side: the unit of this process, and what it says of it."""
        if message.member == "GetUnitByPID":
            if self.stop_usec is None:
                return Message.new_error(message, "org.freedesktop.systemd1.NoUnitForPID", "no unit")
            return Message.new_method_return(message, "o", [UNIT])
        if message.member == "Get" and message.path == UNIT:
            known = {"MainPID": Variant("u", self.main_pid), "TimeoutStopUSec": Variant("t", self.stop_usec)}
            return Message.new_method_return(message, "v", [known[message.body[1]]])
        return None

    async def start(self) -> None:
        """Starts the bus and takes logind's name on it."""
        self._socket.unlink(missing_ok=True)
        argv = ["dbus-daemon", f"--config-file={self._configuration}", "--nofork", "--print-address=1"]
        self._daemon = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        assert self._daemon.stdout is not None
        await self._daemon.stdout.readline()  # it listens now
        self._bus = await MessageBus(bus_address=self.address, negotiate_unix_fd=True).connect()
        self._bus.add_message_handler(self._answer)
        await self._bus.request_name("org.freedesktop.systemd1")
        await self._bus.request_name(SERVICE)

    async def stop(self) -> None:
        """Takes bus and logind away."""
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()
        if self._bus is not None:
            self._bus.disconnect()
        if self._daemon is not None:
            self._daemon.kill()
            await self._daemon.communicate()
        self._bus = self._daemon = None

    async def prepare(self, is_preparing: bool) -> None:
        """Begins a shutdown, or calls it off."""
        assert self._bus is not None
        self.is_preparing = is_preparing
        await self._bus.send(Message.new_signal(PATH, INTERFACE, "PrepareForShutdown", "b", [is_preparing]))

    async def forge(self, is_preparing: bool) -> None:
        """Somebody else on the bus says the same, straight to everybody's own address, where no match rule is asked."""
        forger = await MessageBus(bus_address=self.address).connect()
        listed = Message("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "ListNames")
        names = (await forger.call(listed)).body[0]
        for name in [each for each in names if each.startswith(":")]:
            signal = Message.new_signal(PATH, INTERFACE, "PrepareForShutdown", "b", [is_preparing])
            signal.destination = name
            await forger.send(signal)
        await forger.call(listed)  # the bus takes what one connection sends in order, but not what two of them send
        forger.disconnect()

    async def until_unlocked(self) -> None:
        """Waits until the lock given last was given up."""
        async with asyncio.timeout(30):
            await asyncio.to_thread(os.read, self._locks[-1], 1)  # ends when the last holder of the other end is gone

    async def until_asked(self, times: int) -> None:
        """Waits until a lock was asked for so often."""
        async with asyncio.timeout(30):
            while len(self.asked) < times:
                await self._was_asked.wait()
                self._was_asked.clear()

    def is_locked(self) -> bool:
        """Whether the lock given last is still held."""
        os.set_blocking(self._locks[-1], False)
        try:
            return os.read(self._locks[-1], 1) != b""
        except BlockingIOError:
            return True
        finally:
            os.set_blocking(self._locks[-1], True)

    def _answer(self, message: Message) -> Message | bool | None:
        if message.message_type is not MessageType.METHOD_CALL:
            return None
        if message.path != PATH:
            return self._service(message)
        if message.member == "Inhibit":
            return self._inhibit(message)
        if message.member == "Get":
            known = {
                "InhibitDelayMaxUSec": Variant("t", int(self.delay_s * 1e6)),
                "PreparingForShutdown": Variant("b", self.is_preparing),
            }
            return Message.new_method_return(message, "v", [known[message.body[1]]])
        return None

    def _inhibit(self, message: Message) -> Message | bool:
        self.asked.append(message.body)
        self._was_asked.set()
        if self.refuses:
            return Message.new_error(message, "org.freedesktop.DBus.Error.AccessDenied", "Permission denied")
        ours, theirs = os.pipe()
        self._locks.append(ours)
        reply = Message.new_method_return(message, "h", [0], unix_fds=[theirs])
        giving = asyncio.get_running_loop().create_task(self._give(reply, theirs))
        self._giving.add(giving)
        giving.add_done_callback(self._giving.discard)
        return True

    async def _give(self, reply: Message, lock: int) -> None:
        """Sends the reply; whoever asked is the only holder of the lock from then on."""
        assert self._bus is not None
        try:
            await self._bus.send(reply)
        finally:
            os.close(lock)
