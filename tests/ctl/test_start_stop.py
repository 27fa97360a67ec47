"""start, stop, restart, signal, clear, checkpoint: Supervisor's lines and exit statuses."""

import json
import threading

import pytest

from tests.ctl.daemon_end import Fault, down, job, program


@pytest.mark.parametrize(
    ("action", "line"),
    [("start", "started"), ("stop", "stopped"), ("clear", "cleared"), ("rotate", "rotated"), ("restart", "started")],
)
def test_success_is_one_line_and_0(daemon, ctl, action, line):
    daemon.answers |= {command: {"name": "web"} for command in ("start", "stop", "clear", "rotate")}

    result = ctl(action, "web")

    assert result.out.splitlines()[-1] == f"web: {line}"
    assert result.status == 0


@pytest.mark.parametrize(
    ("action", "code", "line", "status"),
    [
        ("start", "BAD_NAME", "web: ERROR (no such process)", 1),
        ("start", "NO_FILE", "web: ERROR (no such file)", 1),
        ("start", "NOT_EXECUTABLE", "web: ERROR (file is not executable)", 1),
        ("start", "ALREADY_STARTED", "web: ERROR (already started)", 0),
        ("start", "SPAWN_ERROR", "web: ERROR (spawn error)", 7),
        ("start", "ABNORMAL_TERMINATION", "web: ERROR (abnormal termination)", 7),
        ("start", "WAITING", "web: waiting", 7),
        ("stop", "NOT_RUNNING", "web: ERROR (not running)", 0),
        ("stop", "BAD_NAME", "web: ERROR (no such process)", 1),
        ("signal", "BAD_SIGNAL", "web: ERROR (bad signal name)", 1),
        ("signal", "NOT_RUNNING", "web: ERROR (not running)", 7),
        ("clear", "FAILED", "web: ERROR (failed)", 1),
        ("checkpoint", "NOT_RUNNING", "web: ERROR (not running)", 7),
        ("checkpoint", "NOT_A_JOB", "web: ERROR (not a job)", 1),
    ],
)
def test_refusals_have_supervisors_words_and_statuses(daemon, ctl, action, code, line, status):
    daemon.answers[action] = Fault(code, "web")

    result = ctl(action, *(["HUP"] if action == "signal" else []), "web")

    assert (result.out, result.status) == (f"{line}\n", status)


def test_a_job_that_does_not_train_says_why_under_the_line(daemon, ctl):
    daemon.answers["start"] = Fault("ABNORMAL_TERMINATION", "ModuleNotFoundError: No module named 'trian'\nline 2")

    result = ctl("start", "digits")

    assert result.out == "digits: ERROR (abnormal termination)\n"
    assert result.err == "    ModuleNotFoundError: No module named 'trian'\n    line 2\n"


def test_a_name_that_is_no_signal_says_what_was_meant(daemon, ctl):
    daemon.answers["signal"] = Fault("BAD_SIGNAL", "the signal is 'HPU', which is no signal; did you mean HUP?")

    result = ctl("signal", "HPU", "web")

    assert result.out == "web: ERROR (bad signal name)\n"
    assert result.err == "    the signal is 'HPU', which is no signal; did you mean HUP?\n"


@pytest.mark.parametrize("order", ["--from-scratch", "--from-step=100"])
def test_an_order_where_to_begin_that_a_running_job_does_not_carry_out_is_no_success(daemon, ctl, order):
    daemon.answers["start"] = Fault("ALREADY_STARTED", "digits runs, so its checkpoints are left as they are; stop it")

    result = ctl("start", order, "digits")

    assert (result.out, result.status) == ("digits: ERROR (already started)\n", 1)
    assert result.err == "    digits runs, so its checkpoints are left as they are; stop it\n"


def test_several_programs_start_side_by_side(daemon, ctl):
    together = threading.Barrier(3, timeout=60)

    def start(arguments):
        together.wait()  # breaks, and the test fails, unless all three are asked at once
        return {"name": arguments["name"]}

    daemon.answers["start"] = start

    result = ctl("start", "a", "b", "c")

    assert sorted(result.out.splitlines()) == ["a: started", "b: started", "c: started"]


def test_from_scratch_is_passed_on_for_named_jobs_only(daemon, ctl):
    daemon.answers["start"] = {"name": "digits"}

    result = ctl("start", "--from-scratch", "digits")
    for many in ("all", "group:*"):
        assert "name each job" in ctl("start", many, "--from-scratch").out

    assert (result.out, result.status) == ("digits: started\n", 0)
    assert daemon.asked == [("start", {"name": "digits", "from_scratch": True})]


def test_the_worst_result_is_the_status(daemon, ctl):
    def start(arguments):
        raise Fault({"a": "ABNORMAL_TERMINATION", "b": "BAD_NAME", "c": "ALREADY_STARTED"}[arguments["name"]])

    daemon.answers["start"] = start

    assert ctl("start", "a", "b", "c").status == 7


def test_start_all_names_only_what_had_to_be_started(daemon, ctl):
    daemon.answers |= {"status": {"programs": [program("a"), down("b")]}, "start": {"name": "b"}}

    result = ctl("start", "all")

    assert result.out == "b: started\n"
    assert [arguments for command, arguments in daemon.asked if command == "start"] == [{"name": "b"}]


def test_stop_all_leaves_alone_what_is_down(daemon, ctl):
    daemon.answers |= {"status": {"programs": [program("a"), down("b")]}, "stop": {"name": "a"}}

    assert ctl("stop", "all").out == "a: stopped\n"


def test_restart_of_a_stopped_program_starts_it(daemon, ctl):
    daemon.answers |= {"stop": Fault("NOT_RUNNING", "web"), "start": {"name": "web"}}

    result = ctl("restart", "web")

    assert (result.out, result.status) == ("web: ERROR (not running)\nweb: started\n", 0)


def test_signal_passes_the_name_of_the_signal(daemon, ctl):
    daemon.answers["signal"] = {"name": "web"}

    result = ctl("signal", "usr1", "web")

    assert result.out == "web: signalled\n"
    assert daemon.asked == [("signal", {"name": "web", "signal": "usr1"})]


@pytest.mark.parametrize("written", ["web", "web:web", "web:*", "web:"])
def test_supervisors_ways_to_write_a_name_mean_the_program(daemon, ctl, written):
    daemon.answers |= {"stop": {"name": "web"}, "status": {"programs": [program("web"), program("other")]}}

    ctl("stop", written)

    assert [request for request in daemon.asked if request[0] == "stop"] == [("stop", {"name": "web"})]


def test_a_group_is_its_programs_that_have_something_to_do(daemon, ctl):
    programs = [program("web"), program("w:one"), down("w:two"), down("w:three")]
    daemon.answers |= {"start": {"name": "x"}, "status": {"programs": programs}}

    result = ctl("start", "w:*", "web")

    asked = {arguments["name"] for command, arguments in daemon.asked if command == "start"}
    assert asked == {"w:two", "w:three", "web"}
    assert (sorted(result.out.splitlines()), result.status) == (
        ["w:three: started", "w:two: started", "web: started"],
        0,
    )


def test_an_unknown_group_is_called_a_group(daemon, ctl):
    daemon.answers |= {"stop": Fault("BAD_NAME", "web"), "status": {"programs": []}}

    assert ctl("stop", "web:*").out == "web: ERROR (no such group)\n"


def test_checkpoint_says_what_was_saved(daemon, ctl):
    daemon.answers["checkpoint"] = {
        "checkpoint": "step-0000001200.a3",
        "step": 1200,
        "size_bytes": 734003200,
        "save_s": 6.1,
    }

    result = ctl("checkpoint", "digits")

    assert result.out == "digits: saved step-0000001200.a3 (700.0 MB in 6.1 s)\n"


def test_checkpoint_all_asks_jobs_that_train(daemon, ctl):
    daemon.answers["status"] = {"programs": [program("a", job=job()), program("b"), down("c", job=job())]}
    daemon.answers["checkpoint"] = {"checkpoint": "step-0000000001.a1", "step": 1, "size_bytes": 1, "save_s": 0.1}

    ctl("checkpoint", "all")

    assert daemon.asked[1:] == [("checkpoint", {"name": "a"})]


@pytest.mark.parametrize(
    ("words", "text", "status"),
    [
        (["start"], "Error: start requires a process name", 2),
        (["stop"], "Error: stop requires a process name", 1),
        (["signal", "HUP"], "Error: signal requires a signal name and a process name", 1),
        (["reload", "x"], "Error: reload accepts no arguments", 1),
        (["bogus", "x"], "*** Unknown syntax: bogus x", 1),
        (["checkpoints"], "Error: checkpoints requires one process name", 1),
        (["history", "-x", "a"], "Error: bad argument -x", 1),
    ],
)
def test_wrong_arguments_say_so_and_ask_nothing(daemon, ctl, words, text, status):
    result = ctl(*words)

    assert (result.out.splitlines()[0], result.status) == (text, status)
    assert daemon.asked == []


def test_json_tells_results_and_refusals_in_one_object(daemon, ctl):
    def start(arguments):
        if arguments["name"] == "b":
            raise Fault("NO_FILE", "no such file: /bin/b")
        return {"name": "a"}

    daemon.answers["start"] = start

    result = ctl("start", "a", "b", "--json")

    outcome = json.loads(result.out)
    assert sorted(outcome["programs"], key=lambda entry: entry["name"]) == [
        {"name": "a", "error": None},
        {"name": "b", "error": {"code": "NO_FILE", "message": "no such file: /bin/b"}},
    ]
    assert (outcome["schema"], result.status) == (1, 1)


def test_json_of_restart_is_one_object(daemon, ctl):
    daemon.answers |= {"stop": {"name": "a"}, "start": {"name": "a"}}

    assert json.loads(ctl("--json", "restart", "a").out)["started"] == [{"name": "a", "error": None}]


def test_refused_permission_exits_with_4(daemon, ctl):
    daemon.answers["stop"] = Fault("FORBIDDEN", "uid 33 may look but not change things", 403, is_whole=True)

    result = ctl("stop", "a", "b")

    assert (result.out, result.status) == ("ERROR: uid 33 may look but not change things\n", 4)


UNKNOWN = Fault("UNKNOWN_COMMAND", "there is no command 'each'", 404, is_whole=True)


def test_a_daemon_that_does_not_know_the_command_says_so_once(daemon, ctl):
    daemon.answers |= {"each": UNKNOWN}

    result = ctl("checkpoint", "a", "b")

    assert (result.out, result.status) == ("ERROR: UNKNOWN_COMMAND: there is no command 'each'\n", 1)


def test_a_daemon_that_begins_to_leave_meanwhile_says_so_of_each(daemon, ctl):
    daemon.answers["start"] = Fault("SHUTDOWN_STATE", "supervisord is shutting down")

    result = ctl("start", "a", "b")

    assert sorted(result.out.splitlines()) == [f"{name}: ERROR (supervisor shutting down)" for name in "ab"]
    assert result.status == 1


def test_connection_lost_before_all_outcomes_is_a_failure(daemon, ctl):
    daemon.answers["stop"] = lambda arguments: {"name": arguments["name"]}
    daemon.loses = "b"

    result = ctl("stop", "a", "b")

    assert result.out.splitlines()[0] == "a: stopped"
    assert "closed the connection after" in result.out
    assert result.status == 1


def test_a_pattern_stands_for_all_programs_that_it_matches(daemon, ctl):
    daemon.answers |= {
        "status": {"programs": [program("web1"), program("web2"), down("web3"), program("db")]},
        "stop": {},
    }

    result = ctl("stop", "web*")

    assert sorted(result.out.splitlines()) == ["web1: stopped", "web2: stopped"]


def test_a_name_that_looks_like_a_pattern_means_the_program_of_that_name(daemon, ctl):
    daemon.answers |= {"status": {"programs": [down("web?"), program("web1"), program("web[1]")]}, "stop": {}}

    result = ctl("stop", "web?", "web[1]")

    assert sorted(result.out.splitlines()) == ["web?: stopped", "web[1]: stopped"]


def test_a_pattern_that_matches_nothing_is_no_such_process(daemon, ctl):
    daemon.answers |= {"status": {"programs": [program("web1")]}, "stop": Fault("BAD_NAME", "we?b*")}

    result = ctl("stop", "we?b*")

    assert (result.out, result.status) == ("we?b*: ERROR (no such process)\n", 1)


def test_one_argument_with_blanks_is_split(daemon, ctl):
    daemon.answers["start"] = {"name": "web"}

    assert ctl("start web").out == "web: started\n"


def test_an_unknown_action_names_the_nearest_one(ctl):
    result = ctl("strat", "web")

    assert (result.out, result.status) == ("*** Unknown syntax: strat web\n", 1)
    assert "did you mean 'start'?" in result.err


def test_an_action_with_its_first_arguments_in_one_word_is_read_as_ansible_writes_it(daemon, ctl):
    daemon.answers["signal"] = {"name": "web"}

    result = ctl("signal HUP", "web")

    assert (result.out, result.status) == ("web: signalled\n", 0)
