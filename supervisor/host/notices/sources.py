"""The table of all notice sources, and which of them a host uses: the configured ones, or those of where it runs."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from supervisor.host.notices.clouds import alibaba, aws, azure, google
from supervisor.host.notices.clouds.firmware import Firmware
from supervisor.host.notices.files.source import NoticeFolderSource
from supervisor.host.notices.logind.source import SEATS, SYSTEM_BUS, LogindSource
from supervisor.host.notices.source import NoticeSource

AUTO: Literal["auto"] = "auto"


@dataclass(frozen=True, slots=True)
class NoticeSettings:
    """The configuration of notices.

    `notice_dir`: the folder of notice files. `owner_uids`: users besides root and the daemon's own whose files count.
    `azure_acknowledge`: whether Azure may be told to go ahead. `google_preemption_notice_s`: the value that the machine
    was created with, 0 or 120.
    """

    notice_dir: Path
    owner_uids: frozenset[int] = frozenset()
    azure_acknowledge: bool = False
    google_preemption_notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Cloud:
    """A row of the table of clouds."""

    is_this_host: Callable[[Firmware], bool]
    make: Callable[[NoticeSettings], NoticeSource]


_CLOUDS: Mapping[str, _Cloud] = {
    "aws": _Cloud(aws.is_this_host, lambda _: aws.AwsSource()),
    "google": _Cloud(
        google.is_this_host,
        lambda settings: google.GoogleSource(
            preemption_notice_s=settings.google_preemption_notice_s, has_gpu=google.has_gpu(Firmware())
        ),
    ),
    "azure": _Cloud(azure.is_this_host, lambda settings: azure.AzureSource(may_acknowledge=settings.azure_acknowledge)),
    "alibaba": _Cloud(alibaba.is_this_host, lambda _: alibaba.AlibabaSource()),
}

_MAKERS: Mapping[str, Callable[[NoticeSettings], NoticeSource]] = {
    **{name: cloud.make for name, cloud in _CLOUDS.items()},
    "file": lambda settings: NoticeFolderSource(settings.notice_dir, settings.owner_uids),
    "logind": lambda _: LogindSource(),
}
NAMES = tuple(_MAKERS)
"""Every name that `notices =` may list."""


class UnknownSourceError(ValueError):
    """There is no source of that name; the text lists those there are."""


def make_sources(names: Literal["auto"] | tuple[str, ...], settings: NoticeSettings) -> tuple[NoticeSource, ...]:
    """The sources to watch; nothing is opened and no server asked yet. Raises UnknownSourceError."""
    chosen = automatic_names() if names == AUTO else tuple(dict.fromkeys(names))
    return tuple(_make_source(name, settings) for name in chosen)


def automatic_names(firmware: Firmware | None = None, seats: Path = SEATS, bus: Path = SYSTEM_BUS) -> tuple[str, ...]:
    """The sources of `notices = auto` on this host: files, the cloud that the firmware names, logind where it runs."""
    cloud = detect_cloud(firmware or Firmware())
    names = ["file"] if cloud is None else ["file", cloud]
    if seats.is_dir() and bus.is_socket() and importlib.util.find_spec("dbus_fast") is not None:
        names.append("logind")
    return tuple(names)


def detect_cloud(firmware: Firmware) -> str | None:
    """The name of the cloud that this host runs in; None if it is none of the table."""
    return next((name for name, cloud in _CLOUDS.items() if cloud.is_this_host(firmware)), None)


def _make_source(name: str, settings: NoticeSettings) -> NoticeSource:
    maker = _MAKERS.get(name)
    if maker is None:
        import difflib  # only here: a daemon whose configuration is right has no use for it

        near = difflib.get_close_matches(name, NAMES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known sources are {', '.join(NAMES)}"
        raise UnknownSourceError(f"there is no notice source {name!r:.40}; {hint}")
    return maker(settings)
