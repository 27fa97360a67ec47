"""The sections of those who serve clients, and of the client."""

from typing import Annotated

from supervisor.config.schema import texts
from supervisor.config.schema.section import (
    FilePath,
    Mode,
    Password,
    SectionModel,
    key,
    parsed_by,
    required,
    section_model,
)

HOW_PASSWORDS_ARE_WRITTEN = (
    "The password, preferably as printed by `supervisord --hash-password` (salted scrypt); Supervisor's `{SHA}HEX` and "
    "clear text are accepted."
)


@section_model
class UnixServerConfig(SectionModel):
    """The socket that supervisorctl talks to. Without the section the daemon can only be told things by signals."""

    file: FilePath = required("Path of the socket, at most 98 bytes long.")
    chmod: Mode = key(
        0o700,
        "Mode of the socket: who may connect. By default only the daemon's user, as orders can run programs.",
    )
    owner: Annotated[tuple[int, int], parsed_by(texts.owner)] | None = key(
        None,
        "Owner of the socket, as `user` or `user:group`; needs root. The owner may make changes; others who may "
        "connect may only look.",
        shown="the daemon's user",
        alias="chown",
    )

    username: str | None = key(
        None,
        "User name that a client must give; goes with password. Whoever knows both may make changes.",
        shown="none: the kernel says who connects",
    )
    password: Password | None = key(None, HOW_PASSWORDS_ARE_WRITTEN, shown="none")


@section_model
class InetServerConfig(SectionModel):
    """A TCP address that supervisorctl on other hosts can talk to. Off without the section; there is no TLS."""

    address: Annotated[tuple[str | None, int], parsed_by(texts.address)] = required(
        "`HOST:PORT`; `*:PORT` or `PORT` alone means every interface. Without username and password, the port is "
        "opened on the loopback interface only (127.0.0.1, or ::1), whatever stands here.",
        alias="port",
    )
    username: str | None = key(
        None,
        "User name that a client must give; goes with password.",
        shown="none: everybody on this host may connect",
    )
    password: Password | None = key(None, HOW_PASSWORDS_ARE_WRITTEN, shown="none")


@section_model
class CtlConfig(SectionModel):
    """What supervisorctl reads from the file; its options -s, -u and -p win over it."""

    serverurl: str | None = key(
        None,
        "Where the daemon listens: `unix:///path` or `http://host:port`.",
        shown="the file of [unix_http_server], else `http://localhost:9001` as in Supervisor",
    )
    username: str | None = key(None, "User name, for a server that asks for one.", shown="none")
    password: str | None = key(None, "Password that goes with it, in clear text.", shown="none")
    prompt: str = key("supervisor", "Text that the interactive shell shows before `> `.")
    history_file: FilePath | None = key(
        None, "File in which the interactive shell keeps its history between runs.", shown="none: it is not kept"
    )
