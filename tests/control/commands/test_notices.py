"""What people are told beforehand."""

from supervisor.control.commands.notices import slow_flush_warning


def test_a_job_whose_flush_does_not_fit_is_told_so():
    said = slow_flush_warning(41.2, 30.0)

    assert said is not None
    assert said.startswith("a flush takes 41.2 s but this host's shortest notice is 30 s: ")


def test_nothing_is_said_where_it_fits_or_nobody_knows():
    assert [slow_flush_warning(29.0, 30.0), slow_flush_warning(None, 30.0), slow_flush_warning(41.0, None)] == [
        None,
        None,
        None,
    ]
