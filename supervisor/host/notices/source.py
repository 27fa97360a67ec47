"""What a source of notices is, and whom it tells."""

from typing import Protocol

from supervisor.core.notices.notice import Notice


class NoticeSink(Protocol):
    """Whom a source tells; called from the event loop's thread. None of these raises."""

    def received(self, notice: Notice) -> None:
        """A notice is there, for the first time, again, or with another deadline; telling it twice does no harm."""

    def withdrawn(self, source: str, id: str) -> None:
        """The notice no longer holds: cancelled, or over with the host still standing."""

    def troubled(self, source: str, error: str | None) -> None:
        """The source can't be asked at present, and why, with what to do; None: it works (again)."""


class NoticeSource(Protocol):
    """One place where notices come from."""

    @property
    def name(self) -> str:
        """One word, as in `notices =` of the configuration and in `Notice.source`."""

    @property
    def shortest_s(self) -> float | None:
        """The shortest warning this source gives before the host is gone (s); None if it promises none."""

    async def watch(self, sink: NoticeSink) -> None:
        """Tells `sink` what happens until it is cancelled. Never raises: what goes wrong is told to `sink.troubled`."""

    async def acknowledge(self, id: str) -> None:
        """Tells the provider that nothing needs to be waited for; does nothing where there is nobody to tell."""
