"""One run's part of an object store, by obstore: what the mirror needs of S3, Google Cloud Storage, Azure and folders.

Credentials come from where the provider's own tools look for them (environment, files, the host's metadata). Large
objects are uploaded in parts, so a piece of one never becomes visible.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from io import RawIOBase
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import from_url

from supervisor.protocol.mirror.keys import url_of_run
from supervisor.protocol.mirror.store_folder import why_not_there

PART_BYTES = 8 << 20  # S3 takes 5 MiB and more; a part is what is sent again after an error
MAX_PARTS = 9000  # S3 allows 10,000: of a file beyond 70 GB the parts are larger
PARALLEL_PIECES = 8  # of a download, PART_BYTES of memory each; AWS: 85 to 90 MB/s for each concurrent request to S3
PARALLEL_PARTS = 4  # enough to fill a line, few enough for a slow one to be done with each in time
CONNECT_TIMEOUT = "10s"
SILENCE_TIMEOUT = "2 minutes"  # nothing comes, or a part is not sent in that time: a line with less than 300 KB/s
REQUEST_TIMEOUT = "1 day"  # the library's is 30 s for a whole request, which would be the end of a large download
RETRIES = 3
RETRY_TIMEOUT_S = 60.0  # then the error is reported, and the daemon decides when to try again
MAX_CAUSE = 300  # characters of what a store or the library says
_AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_AWS_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
MAX_KEYS = 200_000  # of one run: retention keeps a few hundred


class StoreError(Exception):
    """The store did not do it; the text says why, in one line."""


class Store:
    """The objects of one run below a URL. Every method may take long and raises StoreError.

    `run`: what all their keys begin with, before a slash; empty: the URL leads to the run itself. The folder of a
    `file:` URL is never made; below it, the run's is.
    """

    def __init__(self, url: str, run: str = "", retries: int = RETRIES, silence_timeout: str = SILENCE_TIMEOUT) -> None:
        self._url, self._run = url, run
        self.url = url_of_run(url, run)
        """Where the run is."""
        self._below = f"{run}/" if run else ""
        self._require_folder()
        options: dict[str, Any] = {
            # obstore takes the endpoint from the environment, but not that it may be one without TLS
            "client_options": {
                "connect_timeout": CONNECT_TIMEOUT,
                "read_timeout": silence_timeout,
                "timeout": REQUEST_TIMEOUT,
                "allow_http": _names_plain_http(os.environ),
            },
            "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S)},
        }
        if url.startswith("file:"):
            options = {"mkdir": False}
        if url.startswith("s3:") and (credentials := _credentials_of_profile(url, os.environ)) is not None:
            options["credential_provider"] = credentials
        with _as_store_error(f"open {url}"):
            self._store = from_url(url, **options)

    def _require_folder(self) -> None:
        """A disk may be unmounted at any time, and the library would make the folder anew. Raises StoreError."""
        if (why := why_not_there(self._url, self._run)) is not None:
            raise StoreError(why)

    def list_keys(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """Key, size in bytes and time of every object whose key begins with `prefix` (up to a slash)."""
        count = 0
        self._require_folder()
        with _as_store_error(f"list {prefix or 'the run'}"):
            for batch in obstore.list(self._store, f"{self._below}{prefix}".rstrip("/") or None):
                for entry in batch:
                    count += 1
                    if count > MAX_KEYS:
                        raise StoreError(f"cannot list {prefix}: there are more than {MAX_KEYS} objects")
                    yield entry["path"].removeprefix(self._below), entry["size"], entry["last_modified"]

    def read(self, key: str, limit: int) -> bytes | None:
        """A small object; None if there is none. More than `limit` bytes are an error."""
        content = b""
        try:
            with _as_store_error(f"read {key}", may_be_missing=True):
                for piece in obstore.get(self._store, self._below + key).stream(min_chunk_size=limit + 1):
                    content += bytes(piece)
                    if len(content) > limit:
                        raise StoreError(f"cannot read {key}: it has more than {limit} bytes")
        except FileNotFoundError:
            return None
        return content

    def create(self, key: str, content: bytes) -> bool:
        """Creates an object in one step; False if there is another one of that key.

        If the answer of a first try was lost, the second meets what the first has written: that is no other one.
        """
        self._require_folder()
        try:
            with _as_store_error(f"create {key}"):
                obstore.put(self._store, self._below + key, content, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return self.size(key) == len(content) and self.read(key, len(content)) == content
        return True

    def upload(self, key: str, path: Path, pieces_of: Callable[[RawIOBase], Iterable[bytes]]) -> None:
        """Copies a file, as fast as `pieces_of` gives its content; pieces of PART_BYTES are sent as they are.

        Raises FileNotFoundError if there is no such file here.
        """
        self._require_folder()
        with path.open("rb", buffering=0) as file, _as_store_error(f"upload {key}"):
            part_bytes = max(PART_BYTES, os.fstat(file.fileno()).st_size // MAX_PARTS + 1)
            pieces = iter(pieces_of(file))
            obstore.put(self._store, self._below + key, pieces, chunk_size=part_bytes, max_concurrency=PARALLEL_PARTS)

    def size(self, key: str) -> int | None:
        """The size of an object in bytes; None if there is none."""
        there = self.look(key)
        return None if there is None else there[0]

    def look(self, key: str) -> tuple[int, str | None] | None:
        """The size of an object in bytes, and what its ETag says of this version; None if there is none.

        A folder has no such tags: what obstore makes of it there differs between hosts that share it.
        """
        try:
            with _as_store_error(f"look at {key}", may_be_missing=True):
                there = obstore.head(self._store, self._below + key)
        except FileNotFoundError:
            return None
        tag = None if self._url.startswith("file:") else there.get("e_tag")
        return int(there["size"]), tag

    def download(self, key: str) -> Iterator[memoryview]:
        """The content of an object, in pieces, of which several are on their way. Raises FileNotFoundError."""
        with _as_store_error(f"download {key}", may_be_missing=True):
            size = int(obstore.head(self._store, self._below + key)["size"])
            pool = ThreadPoolExecutor(PARALLEL_PIECES, "download")
            coming: deque[Future[obstore.Bytes]] = deque()
            try:
                for start in range(0, size, PART_BYTES):
                    end = min(start + PART_BYTES, size)
                    coming.append(pool.submit(obstore.get_range, self._store, self._below + key, start=start, end=end))
                    if len(coming) == PARALLEL_PIECES:
                        yield memoryview(coming.popleft().result())
                while coming:
                    yield memoryview(coming.popleft().result())
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects, one after the other; those that are gone already are no error."""
        for key in keys:
            try:
                with _as_store_error(f"delete {key}", may_be_missing=True):
                    obstore.delete(self._store, self._below + key)
            except FileNotFoundError:
                continue


def _names_plain_http(environment: Mapping[str, str]) -> bool:
    """Whether the operator names an endpoint without TLS, such as a server of their own on this host."""
    return any(value.startswith("http://") for key, value in environment.items() if "ENDPOINT" in key)


def _credentials_of_profile(url: str, environment: Mapping[str, str]) -> Any | None:
    """Those in AWS's files, of AWS_PROFILE or the default profile, which obstore leaves to boto3; None: there are none.

    Variables with credentials come first, as for AWS's own tools. Raises StoreError if AWS_PROFILE can't be used.
    """
    profile = environment.get("AWS_PROFILE")
    places = (environment.get(name, f"~/.aws/{file}") for name, file in _AWS_FILES.items())
    if any(name in environment for name in _AWS_VARIABLES) or not (
        profile or any(map(os.path.exists, map(os.path.expanduser, places)))
    ):
        return None
    try:
        from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped] # boto3 is installed or not
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        if profile is None:
            return None
        remedy = "install boto3 beside stepkeeper, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise StoreError(f"cannot open {url}: AWS_PROFILE is {profile!r}, and profiles need boto3; {remedy}") from None
    try:
        return Boto3CredentialProvider()
    except (BotoCoreError, ValueError) as error:  # ValueError: there are none
        if profile is None:
            return None
        remedy = "correct AWS_PROFILE, or the files below ~/.aws"
        raise StoreError(f"cannot open {url}: no credentials of AWS_PROFILE {profile!r}: {error}; {remedy}") from error


@contextmanager
def _as_store_error(doing: str, may_be_missing: bool = False) -> Iterator[None]:
    """`may_be_missing`: FileNotFoundError is left as it is. Else a bucket is missing, or a part of an upload."""
    try:
        yield
    except (AlreadyExistsError, PreconditionError):
        raise
    except FileNotFoundError as error:
        if may_be_missing:
            raise
        raise StoreError(f"cannot {doing}: {_cause(str(error)) or type(error).__name__}") from error
    except (BaseError, OSError, ValueError) as error:
        raise StoreError(f"cannot {doing}: {_cause(str(error)) or type(error).__name__}") from error


_ANSWER = re.compile(r"status code: (\d{3}) ?([\w '-]*)(.*)", re.DOTALL)
_REQUEST = re.compile(r"Error performing [A-Z]+ (\S+) in .*? - (.*)", re.DOTALL)
_QUERY = re.compile(r"(https?://[^\s?]+)\?\S*")
_DENIED = ("ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed")


def _cause(text: str) -> str:
    """What an error of the library says, and what to do, in one line. The query of a URL may be a secret."""
    # obstore adds its own structures behind the first line; only there it says that the store did not answer
    first, _, rest = _QUERY.sub(r"\1", text).partition("\n\n")
    if (answer := _ANSWER.search(first)) is not None:
        status, phrase, body = answer.groups()
        code, message = (_element(name, body) for name in ("Code", "Message"))
        said = f" ({code}: {message})" if code and message else f" ({code or message})" if code or message else ""
        cause = f"the store answers {status} {phrase.strip()}{said}"
        if status in ("401", "403") or code in _DENIED:
            cause += "; renew the credentials, or let their role list, read, write and delete here"
        return cause
    request = _REQUEST.search(first)
    cause = f"{request[1]}: {request[2]}" if request is not None else first
    return f"{' '.join(cause.split())[:MAX_CAUSE]}{' (timed out)' if 'TimedOut' in rest else ''}"


def _element(name: str, body: str) -> str:
    """The text of an element in a store's answer; empty if there is none."""
    match = re.search(rf"<{name}>([^<]*)</{name}>", body)
    return "" if match is None else " ".join(match[1].split())[: MAX_CAUSE // 2]
