"""The description of the API, held against its committed copy, OpenAPI's own schema, and a running daemon."""

import http.client
import inspect
import json
import re
import socket
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from supervisor.control.base.json_types import request_schema, schema_of
from supervisor.control.commands.table import COMMANDS
from supervisor.control.openapi import description
from tests.places import ROOT
from tests.system.harness import Daemon, job

COPY = ROOT / "docs" / "openapi.json"


def test_the_committed_copy_is_what_the_code_says():
    assert json.loads(COPY.read_text()) == description(), (
        "run: python -m supervisor.control.openapi > docs/openapi.json"
    )


@pytest.mark.thorough
def test_api_description_is_valid_openapi():
    from openapi_spec_validator import validate  # takes half a second to import, for this test alone

    validate(json.loads(json.dumps(description())))


def test_every_command_says_what_it_takes_and_gives():
    for name, command in COMMANDS.items():
        assert schema_of(command.answer_type) is not None, name
        assert set(inspect.signature(command.act).parameters) - {"turn"} <= {"context", "request"}, name


def test_every_number_in_a_request_has_a_limit():
    unlimited = [
        (name, key)
        for name, command in COMMANDS.items()
        for key, schema in request_schema(command.request_type)["properties"].items()
        for member in schema.get("anyOf", [schema])
        if member.get("type") in ("integer", "number") and "maximum" not in {**schema, **member}
    ]

    assert unlimited == []


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("api")
    with Daemon(
        folder,
        "[program:sleeper]\ncommand=/bin/sleep 100000\n" + job("digits", folder, STEPS=1_000_000, EVERY=1_000_000),
    ) as daemon:
        daemon.until_step("digits", 1)
        daemon.until_state("sleeper", "RUNNING")
        yield daemon


def ask(daemon: Daemon, method: str, path: str, body: object = None) -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(daemon.socket))
    connection.request(method, path, None if body is None else json.dumps(body))
    answer = connection.getresponse()
    content_type, content = answer.headers["Content-Type"].partition(";")[0], answer.read()
    connection.close()
    return answer.status, content_type, json.loads(content) if content_type == "application/json" else content


def strict(schema: Any) -> Any:
    """The same schema, with keys that it does not describe forbidden: an answer has exactly what is written down."""
    if isinstance(schema, list):
        return [strict(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def response_schema(path: str, method: str, status: int) -> dict[str, Any]:
    document = description()
    responses = document["paths"][path][method]["responses"]
    schema = responses.get(str(status), responses["default"])["content"]["application/json"]["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return dict(strict(schema))


REQUESTS = [
    ("status", {}),
    ("pid", {}),
    ("version", {}),
    ("avail", {}),
    ("reread", {}),
    ("history", {"name": "digits"}),
    ("history", {"name": "digits", "limit": 0}),
    ("checkpoint", {"name": "digits"}),
    ("checkpoint", {"name": "sleeper"}),
    ("checkpoints", {"name": "digits"}),
    ("checkpoints", {"name": "digits", "verify": False}),
    ("clear", {"name": "digits"}),
    ("rotate", {"name": "digits"}),
    ("signal", {"name": "sleeper", "signal": "CONT"}),
    ("signal", {"name": "sleeper", "signal": "NOPE"}),
    ("start", {"name": "sleeper"}),
    ("start", {"name": "nobody"}),
    ("stop", {"name": "sleeper"}),
    ("start", {"name": "sleeper", "wait": False}),
    ("status", {}),
    ("add", {"name": "sleeper"}),
    ("remove", {"name": "sleeper"}),
    ("update", {}),
    ("update", {"names": ["nobody"]}),
    ("history", {"name": "sleeper"}),
    ("drill", {"name": "sleeper", "in_s": 3600}),
    ("notices", {}),
    ("top", {}),
    ("status", {}),
    ("drill", {"name": "sleeper", "withdraw": True}),
    ("drill", {"name": "sleeper", "in_s": -1}),
    ("stop", {}),
]


@pytest.mark.integration
def test_every_answer_is_as_described(daemon: Daemon):
    wrong = []
    for command, arguments in REQUESTS:
        status, content_type, answer = ask(daemon, "POST", f"/api/v1/{command}", arguments)
        schema = response_schema(f"/api/v1/{command}", "post", status)
        errors = [error.message for error in Draft202012Validator(schema).iter_errors(answer)]
        if errors or content_type != "application/json":
            wrong.append((command, arguments, status, errors))

    assert wrong == []


@pytest.mark.integration
def test_arguments_that_the_description_forbids_are_refused(daemon: Daemon):
    accepted = []
    for command, entry in COMMANDS.items():
        taken = fields(entry.request_type) if entry.request_type is not None else ()
        required = [parameter.name for parameter in taken if parameter.default is MISSING]
        for name in required:
            for wrong in ({}, {**dict.fromkeys(required, "digits"), name: 7}):
                status, _, _ = ask(daemon, "POST", f"/api/v1/{command}", wrong)
                if status != 400:
                    accepted.append((command, wrong, status))

    assert accepted == []


@pytest.mark.integration
def test_commands_that_end_the_daemon_answer_as_described(tmp_path: Path):
    with Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\n") as daemon:
        status, _, answer = ask(daemon, "POST", "/api/v1/shutdown")

        assert status == 200
        assert not list(Draft202012Validator(response_schema("/api/v1/shutdown", "post", 200)).iter_errors(answer))


@pytest.mark.integration
def test_the_daemon_serves_its_own_description(daemon: Daemon):
    status, content_type, answer = ask(daemon, "GET", "/openapi.json")

    assert (status, content_type) == (200, "application/json")
    assert answer == description()


@pytest.mark.integration
def test_plain_get_paths_are_served_as_described(daemon: Daemon):
    for path, request in (
        ("/metrics", "/metrics"),
        ("/api/v1/tail", "/api/v1/tail?name=digits&bytes=10"),
        ("/api/v1/events", "/api/v1/events?since=start&follow=0"),
    ):
        status, content_type, _ = ask(daemon, "GET", request)

        assert status == 200
        assert content_type in description()["paths"][path]["get"]["responses"]["200"]["content"]


def test_every_path_of_the_router_is_described():
    source = (ROOT / "supervisor" / "control" / "server.py").read_text()
    served = set(re.findall(r'add_(?:get|post)\("([^"]+)"', source)) - {"/api/v1/{command}"}

    assert served <= description()["paths"].keys()
