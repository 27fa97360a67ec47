"""The host's counters, as the kernel shows them."""

from pathlib import Path

from supervisor.host.resources.load import read_load


def test_this_host_counts_cpu_time():
    first = read_load()
    last = read_load()

    assert first.cpu_s is not None and last.cpu_s is not None and 0 < first.cpu_s <= last.cpu_s
    assert last.at >= first.at


def test_each_counter_is_read_in_its_unit(tmp_path: Path):
    proc, cpus = tmp_path / "proc", tmp_path / "cpu"
    (proc / "pressure").mkdir(parents=True)
    (proc / "stat").write_text("cpu  100 0 100 700 0 0 0 100 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    (proc / "vmstat").write_text("nr_free_pages 5\npswpin 3\npswpout 4\n")
    for name, total in (("cpu", 1_500_000), ("memory", 0), ("io", 2_000_000)):
        (proc / "pressure" / name).write_text(
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
        )
    for number in range(2):
        (cpus / f"cpu{number}" / "thermal_throttle").mkdir(parents=True)
        (cpus / f"cpu{number}" / "thermal_throttle" / "core_throttle_count").write_text("21\n")
        (cpus / f"cpu{number}" / "cpufreq").mkdir()
        (cpus / f"cpu{number}" / "cpufreq" / "scaling_cur_freq").write_text("2400000\n")

    load = read_load(proc, cpus)

    assert (load.cpu_s, load.steal_s) == (10.0, 1.0)
    assert (load.cpu_stall_s, load.memory_stall_s, load.io_stall_s) == (1.5, 0.0, 2.0)
    assert (load.swapped_pages, load.throttled, load.megahertz) == (7.0, 42.0, 2400.0)


def test_what_a_host_does_not_show_or_shows_strangely_is_not_known(tmp_path: Path):
    (tmp_path / "pressure").mkdir()
    (tmp_path / "stat").write_text("cpu one two\n")
    (tmp_path / "pressure" / "cpu").write_text("some total=many\n")

    load = read_load(tmp_path, tmp_path / "none")

    assert (load.cpu_s, load.cpu_stall_s, load.io_stall_s, load.swapped_pages, load.megahertz) == (None,) * 5
