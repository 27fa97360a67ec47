"""Requests to exit, and requests made after them."""

import pytest

from supervisor.signals import ExitRequest


@pytest.mark.parametrize(("requests", "is_reload"), [(["reload"], True), (["exit", "reload"], False)])
async def test_an_exit_requested_while_a_reload_read_the_configuration_wins(requests: list[str], is_reload: bool):
    request = ExitRequest()

    for each in requests:
        {"exit": request.request_exit, "reload": request.request_reload}[each]()

    assert request.is_made
    assert request.is_reload is is_reload


async def test_a_reload_does_nothing_while_a_sigterm_is_being_decided():
    request = ExitRequest()
    request.is_being_decided = True

    request.request_reload()

    assert not request.is_made
    assert not request.is_reload


async def test_the_status_of_the_first_request_counts():
    request = ExitRequest()

    request.request_exit(70)
    request.request_exit()

    assert request.exit_status == 70
