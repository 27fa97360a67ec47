#!/usr/bin/env python3
"""Sends the event of a hook to a chat's webhook, by mail, or to ntfy. Uses the standard library only.

docs/hooks.md says how it is used. What a job printed can be part of an event, so nothing of it is trusted: it never
gets into an address or a command line, control characters are replaced, it is cut, and it mentions nobody, links to
nothing and has no markup. Secrets come from the settings file alone.
"""

import argparse
import base64
import configparser
import email.message
import email.utils
import json
import os
import re
import smtplib
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SETTINGS = Path("/etc/stepkeeper/hooks.conf")
TIMEOUT_S = 20.0  # for all tries of all channels; the daemon's hook_timeout is 30
PAUSES_S = (1.0, 3.0)  # before the second and the third try
MAX_EVENT_BYTES = 1 << 20
MAX_TEXT = 1000  # characters; chats refuse long messages as a whole
MAX_SUBJECT = 150

WHAT = {
    "failed": "has failed and is not started again",
    "relaunched": "was started again",
    "refused": "has a checkpoint that was refused",
    "unsaved": "has ended, and its last steps are not saved",
    "replay_difference": "got other bits from the same steps",
    "slower": "trains slower than usual",
    "done": "has finished training",
    "notice": "is on a host that goes away",
    "gpu_fault": "has a GPU that failed",
}
SHOWN = (
    *("what", "line", "line_from", "who", "advice", "follows"),
    *("text", "reason", "cause", "checkpoint", "source", "kind", "certainty", "deadline_s"),
    *("gpu", "pci_address", "action", "programs"),
    *("state", "step", "attempt"),
)
URGENT = ("failed", "refused", "unsaved", "replay_difference", "notice", "gpu_fault")
TAGS = {
    "failed": "rotating_light",
    "relaunched": "repeat",
    "refused": "warning",
    "unsaved": "warning",
    "replay_difference": "warning",
    "slower": "snail",
    "done": "white_check_mark",
    "notice": "hourglass",
    "gpu_fault": "rotating_light",
}
KEYS = {
    "webhook": {"url", "proxy", "ca_file"},
    "mail": {"host", "port", "security", "user", "password", "from", "to", "ca_file"},
    "ntfy": {"url", "topic", "token", "user", "password", "proxy", "ca_file"},
}
REQUIRED = {"webhook": ("url",), "mail": ("host", "from", "to"), "ntfy": ("topic",)}

AS_TEXT = {
    "parse": "none",  # Slack: names and addresses in the text are no mentions and links,
    "link_names": False,
    "unfurl_links": False,  # and of what is a link it shows nothing
    "unfurl_media": False,
    "allowed_mentions": {"parse": []},  # Discord
}
"""What services are told beside the text; each ignores the others' words."""

Event = Mapping[str, Any]
Settings = Mapping[str, str]


class SettingsError(Exception):
    """The settings, the arguments or the event can't be used."""


class SendError(Exception):
    """A message was not accepted. `is_temporary`: another try may help."""

    def __init__(self, text: str, *, is_temporary: bool = False) -> None:
        super().__init__(text)
        self.is_temporary = is_temporary


def plain(value: object, limit: int = MAX_TEXT) -> str:
    """One line without control characters."""
    text = "".join(character if character.isprintable() else " " for character in str(value))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def harmless(value: object, limit: int = MAX_TEXT) -> str:
    """One line that no service takes as a mention or an address: of `@everyone` and `https://x` it keeps the look."""
    text = plain(value, limit)
    for sign, instead in (("@", "\uff20"), ("://", "[:]//"), ("mailto:", "mailto[:]")):
        text = text.replace(sign, instead)
    return re.sub(r"\bwww\.", "www[.]", text, flags=re.IGNORECASE)


def title(event: Event) -> str:
    program, host = event.get("program"), harmless(event.get("host"), 100)
    who = host if program is None else f"{harmless(program, 100)} on {host}"
    return f"{who} {WHAT.get(str(event.get('event')), harmless(event.get('event'), 30))}"


def details(event: Event) -> str:
    """What is known about it, a line each."""
    return "\n".join(f"{key}: {harmless(event[key])}" for key in SHOWN if event.get(key) is not None)


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: they could carry the token to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def context(settings: Settings) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=settings.get("ca_file"))


def post(url: str, settings: Settings, message: object, deadline: float, headers: Settings | None = None) -> None:
    """Sends JSON. Raises SendError."""
    body = json.dumps(message).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **(headers or {})})
    proxy = settings.get("proxy")
    opener = urllib.request.build_opener(
        NoRedirects(),
        urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else {}),
        urllib.request.HTTPSHandler(context=context(settings)),
    )
    try:
        with opener.open(request, timeout=max(0.1, deadline - time.monotonic())) as answer:
            answer.read(1000)
    except urllib.error.HTTPError as error:
        with error:
            said = plain(error.read(1000).decode(errors="replace"), 200)
        is_temporary = error.code >= 500 or error.code == 429
        raise SendError(
            f"answered {error.code} {plain(error.reason, 50)}: {said}", is_temporary=is_temporary
        ) from error
    except urllib.error.URLError as error:
        raise SendError(
            plain(error.reason), is_temporary=not isinstance(error.reason, ssl.SSLCertVerificationError)
        ) from error
    except OSError as error:
        raise SendError(plain(error), is_temporary=True) from error


def send_webhook(event: Event, settings: Settings, deadline: float) -> None:
    """Slack's incoming webhooks, and those that take the same: Mattermost, Rocket.Chat, Discord's with /slack.

    All of them show a block of code as it is: no mentions, links or markup in it. The job's text can't end the block.
    """
    head, known = title(event).replace("*", " ").replace("`", "'"), details(event).replace("`", "'")
    text = f"*{head}*\n```\n{known}\n```" if known else f"*{head}*"
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):  # no links and no mentions, such as <!channel>
        text = text.replace(sign, entity)
    post(settings["url"], settings, {"text": text, **AS_TEXT}, deadline)


def send_ntfy(event: Event, settings: Settings, deadline: float) -> None:
    """As JSON, since headers can't hold everything."""
    kind = event.get("event")
    message = {
        "topic": settings["topic"],
        "title": plain(title(event), MAX_SUBJECT),
        "message": details(event) or title(event),
        "priority": 4 if kind in URGENT else 3,
        "tags": [TAGS[kind]] if kind in TAGS else [],
    }
    headers = {}
    if settings.get("token"):
        headers["Authorization"] = f"Bearer {settings['token']}"
    elif settings.get("user"):
        login = f"{settings['user']}:{settings.get('password', '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
    post(settings.get("url", "https://ntfy.sh"), settings, message, deadline, headers)


def send_mail(event: Event, settings: Settings, deadline: float) -> None:
    """Over SMTP, with a login where the settings have one."""
    mail = email.message.EmailMessage()
    mail["From"] = settings["from"]
    mail["To"] = settings["to"]
    mail["Subject"] = plain(f"stepkeeper: {title(event)}", MAX_SUBJECT)
    mail["Date"] = email.utils.localtime()
    mail["Message-ID"] = email.utils.make_msgid("stepkeeper", domain="localhost")
    mail["Auto-Submitted"] = "auto-generated"
    written = harmless(json.dumps(event), 4 * MAX_TEXT)
    mail.set_content(f"{title(event)}\n\n{details(event)}\n\n{written}\n")
    security = settings.get("security", "starttls")
    port = int(settings.get("port") or {"starttls": 587, "tls": 465, "none": 25}[security])
    timeout = max(0.1, deadline - time.monotonic())
    try:
        if security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(settings["host"], port, timeout=timeout, context=context(settings))
        else:
            server = smtplib.SMTP(settings["host"], port, timeout=timeout)
        with server:
            if security == "starttls":
                server.starttls(context=context(settings))
            if settings.get("user"):
                server.login(settings["user"], settings.get("password", ""))
            refused = server.send_message(mail)
    except smtplib.SMTPRecipientsRefused as error:
        raise SendError(f"refused {plain(', '.join(error.recipients))}") from error
    except smtplib.SMTPResponseException as error:
        said = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        raise SendError(
            f"answered {error.smtp_code}: {plain(said, 200)}", is_temporary=400 <= error.smtp_code < 500
        ) from error
    except ssl.SSLCertVerificationError as error:
        raise SendError(plain(error)) from error
    except (smtplib.SMTPException, OSError) as error:
        raise SendError(
            plain(error), is_temporary=isinstance(error, (OSError, smtplib.SMTPServerDisconnected))
        ) from error
    if refused:
        raise SendError(f"refused {plain(', '.join(refused))}; the other addresses got it")


SENDERS = {"webhook": send_webhook, "mail": send_mail, "ntfy": send_ntfy}


def read_settings(path: Path) -> dict[str, Settings]:
    """The sections, checked. Raises SettingsError, which never quotes a value."""
    try:
        with path.open() as file:
            if os.fstat(file.fileno()).st_mode & 0o007:
                raise SettingsError(f"cannot trust {path}: everybody may read or change it; chmod o-rwx {path}")
            parser = configparser.ConfigParser(interpolation=None)
            parser.read_string(file.read(MAX_EVENT_BYTES))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}; write it as docs/hooks.md shows") from error
    except (configparser.Error, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", None) or next((number for number, _ in getattr(error, "errors", ())), "?")
        raise SettingsError(f"cannot read {path}: line {line} is no [section] and no key = value") from error
    return {name: checked(path, name, dict(parser[name])) for name in parser.sections()}


def checked(path: Path, name: str, settings: Settings) -> Settings:
    kind = name.partition(":")[0]
    where = f"{path}: [{name}]"
    if kind not in KEYS:
        raise SettingsError(f"{where} is not known; there are {', '.join(KEYS)}, and each with a name: [mail:night]")
    for key in settings:
        if key not in KEYS[kind]:
            raise SettingsError(f"{where} has no key {key}; it has {', '.join(sorted(KEYS[kind]))}")
    for key in REQUIRED[kind]:
        if not settings.get(key):
            raise SettingsError(f"{where} lacks {key}")
    for key in ("url", "proxy"):
        if settings.get(key) and urllib.parse.urlsplit(settings[key]).scheme not in ("http", "https"):
            raise SettingsError(f"{where} {key} is no address that begins with https:// or http://")
    if kind == "mail":
        check_mail(where, settings)
    return settings


def check_mail(where: str, settings: Settings) -> None:
    security = settings.get("security", "starttls")
    if security not in ("starttls", "tls", "none"):
        raise SettingsError(f"{where} security is starttls, tls or none")
    if not settings.get("port", "25").isdecimal():
        raise SettingsError(f"{where} port is no number")
    is_local = settings["host"] in ("localhost", "127.0.0.1", "::1")
    if security == "none" and settings.get("user") and not is_local:
        raise SettingsError(f"{where} would send the password in clear text; set security to starttls or tls")


def read_event(*, is_test: bool) -> Event:
    if is_test:
        text = "this is a test; nothing has happened"
        return {"event": "relaunched", "program": "test", "host": socket.gethostname(), "text": text}
    try:
        event = json.loads(sys.stdin.buffer.read(MAX_EVENT_BYTES))
    except ValueError as error:
        raise SettingsError("cannot read the event: standard input is no JSON; run it as a hook, or --test") from error
    if not isinstance(event, dict):
        raise SettingsError("cannot read the event: standard input is no JSON object; run it as a hook, or --test")
    return event


def send(name: str, event: Event, settings: Settings, deadline: float, results: dict[str, str | None]) -> None:
    """One channel, with its tries; puts None or what went wrong into `results`."""
    for pause_s in (*PAUSES_S, None):
        try:
            SENDERS[name.partition(":")[0]](event, settings, deadline)
        except SendError as error:
            results[name] = str(error)
            if not error.is_temporary or pause_s is None or time.monotonic() + pause_s >= deadline:
                return
            time.sleep(pause_s)
        except Exception as error:  # noqa: BLE001 - a thread's error has no other way out
            results[name] = f"{type(error).__name__}: {plain(error)}"
            return
        else:
            results[name] = None
            return


def main() -> int:
    parser = argparse.ArgumentParser(description="Sends the event on standard input to a chat, by mail or to ntfy.")
    parser.add_argument("channels", nargs="*", metavar="SECTION", help="sections of the file (default: all)")
    parser.add_argument("--settings", type=Path, default=SETTINGS, metavar="FILE", help=f"default: {SETTINGS}")
    parser.add_argument("--test", action="store_true", help="send a message that says it is a test")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help=f"default: {TIMEOUT_S:g}")
    options = parser.parse_args()
    deadline = time.monotonic() + options.timeout
    try:
        known = read_settings(options.settings)
        names = options.channels or list(known)
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise SettingsError(f"{options.settings} has no section {', '.join(unknown) or 'at all'}")
        event = read_event(is_test=options.test)
    except SettingsError as error:
        print(f"notify: {error}", file=sys.stderr)
        return 78
    # side by side, so that a channel that hangs keeps nothing from the others
    results: dict[str, str | None] = dict.fromkeys(names, f"no answer within {options.timeout:g} s")
    threads = [
        threading.Thread(target=send, args=(name, event, known[name], deadline, results), daemon=True) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    failed = {name: text for name, text in results.items() if text is not None}
    for name, text in failed.items():
        print(f"notify: cannot send to {name}: {text}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
