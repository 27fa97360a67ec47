"""Which sources a host listens to: those it was told, or those of the place it finds itself in."""

import difflib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from supervisor.host.notices.clouds import detect
from supervisor.host.notices.clouds.alibaba import AlibabaSource
from supervisor.host.notices.clouds.aws import AwsSource
from supervisor.host.notices.clouds.azure import AzureSource
from supervisor.host.notices.clouds.google import GoogleSource
from supervisor.host.notices.files.source import NoticeFolderSource
from supervisor.host.notices.logind.source import SEATS, SYSTEM_BUS, LogindSource
from supervisor.host.notices.settings import NoticeSettings
from supervisor.host.notices.source import NoticeSource

AUTO: Literal["auto"] = "auto"

_MAKERS: Mapping[str, Callable[[NoticeSettings], NoticeSource]] = {
    "aws": lambda _: AwsSource(),
    "google": lambda settings: GoogleSource(
        preemption_notice_s=settings.google_preemption_notice_s, has_gpu=detect.has_gpu()
    ),
    "azure": lambda settings: AzureSource(may_acknowledge=settings.azure_acknowledge),
    "alibaba": lambda _: AlibabaSource(),
    "file": lambda settings: NoticeFolderSource(settings.notice_dir, settings.owner_uids),
    "logind": lambda _: LogindSource(),
}
NAMES = tuple(_MAKERS)
"""Every name that `notices =` may list."""


class UnknownSourceError(ValueError):
    """There is no source of that name; the text lists those there are."""


def sources(names: Literal["auto"] | tuple[str, ...], settings: NoticeSettings) -> tuple[NoticeSource, ...]:
    """The sources to watch. Opens nothing and asks nobody yet. Raises UnknownSourceError."""
    chosen = automatic() if names == AUTO else tuple(dict.fromkeys(names))
    return tuple(_make(name, settings) for name in chosen)


def automatic(sys: Path = detect.SYS, seats: Path = SEATS, bus: Path = SYSTEM_BUS) -> tuple[str, ...]:
    """What `notices = auto` amounts to here: files, the cloud the firmware names, logind where there is one."""
    cloud = detect.detect(sys)
    names = ["file"] if cloud is None else ["file", cloud.value]
    if seats.is_dir() and bus.is_socket() and importlib.util.find_spec("dbus_fast") is not None:
        names.append("logind")
    return tuple(names)


def _make(name: str, settings: NoticeSettings) -> NoticeSource:
    maker = _MAKERS.get(name)
    if maker is None:
        near = difflib.get_close_matches(name, NAMES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
        raise UnknownSourceError(f"there is no source of notices called {name!r:.40}; {hint}")
    return maker(settings)
