"""deploy/hooks/notify.py, run as the daemon runs a hook, against receivers on this host."""

import json
import socket
import ssl
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from supervisor.host.hooks import PATH, HookEvent, HookRunner
from tests.places import ROOT

pytestmark = pytest.mark.integration

NOTIFY = ROOT / "deploy/hooks/notify.py"
FAILED = {
    "event": "failed",
    "program": "digits",
    "host": "gpu-7",
    "reason": "<!channel> exit status 1\r\nBcc: all@example.org",
    "step": 378,
    "cause": None,
}


@dataclass
class Receiver:
    """An HTTP server that keeps what it gets. `statuses`: its next answers; then 200."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kept.requests.append((self.path, dict(self.headers), json.loads(body or b"null")))
            status = kept.statuses.pop(0) if kept.statuses else 200
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield kept
    server.shutdown()
    server.server_close()


@dataclass
class Mailbox:
    """Keeps the mails that it gets after a login as `me`, with the password `secret`."""

    recipients: list[str] = field(default_factory=list)
    mails: list[Message] = field(default_factory=list)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.recipients += envelope.rcpt_tos
        self.mails.append(message_from_bytes(envelope.content or b"", policy=policy.default))
        return "250 kept"

    def authenticate(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        return AuthResult(success=(data.login, data.password) == (b"me", b"secret"), handled=False)


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[tuple[Mailbox, int]]:
    """It wants STARTTLS, with the certificate `tmp_path/mail.pem`."""
    box = Mailbox()
    certificate, key = tmp_path / "mail.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    encryption = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    encryption.load_cert_chain(certificate, key)
    # the port is chosen here: aiosmtpd calls the port that it was given to see whether it listens
    controller = Controller(
        box,
        hostname="localhost",
        port=free_port(),
        authenticator=box.authenticate,
        auth_required=True,
        tls_context=encryption,
        require_starttls=True,
    )
    controller.start()
    yield box, controller.port
    controller.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings(folder: Path, text: str, mode: int = 0o640) -> Path:
    path = folder / "hooks.conf"
    path.write_text(text)
    path.chmod(mode)
    return path


def notify(path: Path, *channels: str, event: object = FAILED) -> tuple[int, str]:
    """Its exit status and what it wrote to standard error."""
    done = subprocess.run(
        [NOTIFY, "--settings", path, *channels],
        check=False,
        input=json.dumps(event).encode(),
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        cwd="/",
        capture_output=True,
        timeout=60,
    )
    return done.returncode, done.stderr.decode()


def test_the_daemon_s_hook_reaches_every_channel(tmp_path: Path, receiver: Receiver, mailbox: tuple[Mailbox, int]):
    box, port = mailbox
    path = settings(
        tmp_path,
        f"[webhook]\nurl = {receiver.url}/services/T0/B0/secret\n"
        f"[ntfy:phone]\nurl = {receiver.url}\ntopic = jobs\ntoken = tk_secret\n"
        f"[mail]\nhost = localhost\nport = {port}\nca_file = {tmp_path}/mail.pem\nuser = me\npassword = secret\n"
        "from = stepkeeper@example.org\nto = ops@example.org, night@example.org\n",
    )
    hooks = HookRunner(60.0)

    hooks.run_hook(HookEvent((str(NOTIFY), "--settings", str(path)), "failed", "digits", FAILED))
    hooks.close(60.0)

    assert hooks.failure_summary is None
    webhook, ntfy = sorted(receiver.requests, key=lambda each: each[0], reverse=True)
    assert webhook[0] == "/services/T0/B0/secret"
    assert webhook[2]["text"].startswith(
        "*digits on gpu-7 has failed and is not started again*\n```\nreason: &lt;!channel&gt;"
    )
    assert (ntfy[0], ntfy[1]["Authorization"]) == ("/", "Bearer tk_secret")
    assert (ntfy[2]["topic"], ntfy[2]["priority"], ntfy[2]["tags"]) == ("jobs", 4, ["rotating_light"])
    assert "step: 378" in ntfy[2]["message"] and "cause" not in ntfy[2]["message"]
    assert sorted(box.recipients) == ["night@example.org", "ops@example.org"]
    assert box.mails[0]["Subject"] == "stepkeeper: digits on gpu-7 has failed and is not started again"
    assert box.mails[0]["Bcc"] is None
    assert "exit status 1  Bcc: all\uff20example.org" in box.mails[0].get_content()


HOSTILE = (
    "@everyone @here <@U123> <!channel> <https://evil.example|click> [click](https://evil.example) ```*bold* `x` "
    "![x](http://evil.example/p.png) WWW.evil.example mailto:a@b.c \x1b[31m \u202e \x9b \x00 &lt;"
)


@pytest.mark.hostile
@pytest.mark.parametrize("key", ["reason", "text", "checkpoint", "host", "program", "event"])
def test_what_a_job_says_mentions_nobody_links_nowhere_and_has_no_markup(
    tmp_path: Path, receiver: Receiver, mailbox: tuple[Mailbox, int], key: str
):
    box, port = mailbox
    path = settings(
        tmp_path,
        f"[webhook]\nurl = {receiver.url}/hook\n[ntfy]\nurl = {receiver.url}\ntopic = jobs\n"
        f"[mail]\nhost = localhost\nport = {port}\nca_file = {tmp_path}/mail.pem\nuser = me\npassword = secret\n"
        "from = stepkeeper@example.org\nto = ops@example.org\n",
    )

    assert notify(path, event={**FAILED, key: HOSTILE}) == (0, "")

    (webhook,) = (request[2] for request in receiver.requests if request[0] == "/hook")
    (ntfy,) = (request[2] for request in receiver.requests if request[0] == "/")
    mail = box.mails[0]
    body = mail.get_content().partition("\n\n")[2] if key == "event" else mail.get_content()
    for text in (webhook["text"], ntfy["title"], ntfy["message"], str(mail["Subject"]), body):
        assert "@" not in text
        assert "://" not in text
        assert "www." not in text.lower() and "mailto:" not in text
        assert all(line.isprintable() for line in text.splitlines())
    head, code = webhook["text"].split("\n```\n", 1)
    assert code.endswith("\n```") and code.count("```") == 1, "the block of code ends where the message does"
    assert head.count("*") == 2 and "`" not in head
    assert "<" not in webhook["text"] and ">" not in webhook["text"]
    assert (webhook["parse"], webhook["unfurl_links"], webhook["allowed_mentions"]) == ("none", False, {"parse": []})


def test_a_receiver_that_is_down_for_a_moment_gets_it_once(tmp_path: Path, receiver: Receiver):
    receiver.statuses = [503]

    assert notify(settings(tmp_path, f"[webhook]\nurl = {receiver.url}/x\n")) == (0, "")

    assert len(receiver.requests) == 2


def test_a_token_is_not_taken_to_another_address(tmp_path: Path, receiver: Receiver):
    receiver.statuses = [302]

    status, said = notify(
        settings(tmp_path, f"[ntfy]\nurl = {receiver.url}\ntopic = x\nuser = me\npassword = secret\n")
    )

    assert (status, len(receiver.requests)) == (1, 1)
    assert said.startswith("notify: cannot send to ntfy: answered 302")
    assert receiver.requests[0][1]["Authorization"] == f"Basic {b64encode(b'me:secret').decode()}"


def test_a_mail_server_with_an_unknown_certificate_gets_no_password(tmp_path: Path, mailbox: tuple[Mailbox, int]):
    box, port = mailbox
    path = settings(
        tmp_path, f"[mail]\nhost = localhost\nport = {port}\nuser = me\npassword = secret\nfrom = a@b.c\nto = a@b.c\n"
    )

    status, said = notify(path)

    assert (status, box.mails) == (1, [])
    assert "CERTIFICATE_VERIFY_FAILED" in said


def test_a_channel_that_does_not_answer_keeps_nothing_from_the_others(tmp_path: Path, receiver: Receiver):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        path = settings(tmp_path, f"[ntfy]\nurl = {url}\ntopic = x\n[webhook]\nurl = {receiver.url}/x\n")

        status, said = notify(path, "--timeout", "2")

    assert (status, len(receiver.requests)) == (1, 1)
    assert said.startswith("notify: cannot send to ntfy: ")


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("[webhook]\nurl = https://hooks/secret\n", 0o644, "cannot trust {path}: everybody may read or change it"),
        ("[webhook]\nurl = file:///secret\n", 0o600, "[webhook] url is no address that begins with https://"),
        ("[webhook]\nsecret\n", 0o600, "line 2 is no [section] and no key = value"),
        ("[ntfy]\ntopic = x\nprioritaet = secret\n", 0o600, "[ntfy] has no key prioritaet; it has "),
        (
            "[mail]\nhost = mx.example.org\nsecurity = none\nuser = me\npassword = secret\nfrom = a@b.c\nto = a@b.c\n",
            0o600,
            "[mail] would send the password in clear text",
        ),
    ],
)  # fmt: skip
def test_settings_that_are_not_safe_or_wrong_are_refused_without_a_secret(
    tmp_path: Path, text: str, mode: int, said: str
):
    path = settings(tmp_path, text, mode)

    status, shown = notify(path)

    assert status == 78
    assert said.format(path=path) in shown and "secret" not in shown
