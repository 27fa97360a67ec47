"""What people are told beforehand."""

from supervisor.control.commands.notices import too_slow


def test_a_job_whose_flush_does_not_fit_is_told_so():
    said = too_slow(41.2, 30.0)

    assert said is not None
    assert said.startswith("its flush takes 41.2 s, this host's shortest notice is 30 s: ")


def test_nothing_is_said_where_it_fits_or_nobody_knows():
    assert [too_slow(29.0, 30.0), too_slow(None, 30.0), too_slow(41.0, None)] == [None, None, None]
