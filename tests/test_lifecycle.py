"""What the daemon is told, and told again before it has done it."""

import os
from pathlib import Path
from typing import Any, cast

import pytest

from supervisor.config import load_config
from supervisor.host.service.background import Foreground
from supervisor.lifecycle import DaemonLifecycle


@pytest.mark.parametrize(("told", "begins_anew"), [(["reload"], True), (["leave", "reload"], False)])
async def test_told_to_leave_while_a_reload_read_the_configuration_it_leaves(
    tmp_path: Path, told: list[str], begins_anew: bool
):
    path = tmp_path / "test.conf"
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n")
    config = load_config(path, os.environ)
    daemon = DaemonLifecycle(config, lambda: config, Foreground(), cast("Any", None))

    for each in told:
        {"leave": daemon._leave.set, "reload": daemon._ask_reload}[each]()

    assert daemon._leave.is_set()
    assert daemon._reload is begins_anew
