"""Measures what a save costs and what it protects from, compared with the usual alternatives on one machine.

Run with `python -m bench.saves`; prints tables and writes bench/results/saves.json and saves.svg. One Keras model with
Adam for each state size, on CPU; every variable changes in every step; all systems take turns, each on a disk with
nothing left to write. Orbax runs the same layers as a JAX program, in an environment of its own. `saves_measure.py`
says how the loss is taken, `saves_harm.py` what is done to the checkpoints. `durable` ends with the last sync; systems
that sync nothing (all of TensorFlow's and Keras', but the row with fsync) end when their files are written.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import harness, peer, saves_picture
from bench.saves_measure import Figures, measure, timed
from bench.saves_recipes import RECIPES
from worker.saving.cadence import BETWEEN_FAILURES_S, AutoInterval

ROOT = Path(__file__).resolve().parent.parent
WARM_UP_STEPS = 5
RESTORES = 9  # the first reads from the disk what was not written through the page cache
OURS, WAITING, SYNC, ASYNC = "stepkeeper", "stepkeeper, training waits", "CheckpointManager", "CheckpointManager async"
ORBAX, FLOOR = "Orbax", "floor: write + fsync"

Results = dict[str, Figures]
Harm = dict[str, dict[str, dict[str, object]]]


@contextmanager
def orbax_server(size_mb: float, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Orbax's training, ready for a command. Raises NotInstalled."""
    python = peer.binaries(peer.ORBAX) / "python"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [python, "-m", "bench.saves_orbax", str(size_mb), folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, env=environment, cwd=ROOT, **pipes) as server:  # type: ignore[call-overload]
        yield server
        server.stdin.close()


def asked(server: "subprocess.Popen[str]", command: str) -> dict[str, float]:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(f"{command}\n")
    server.stdin.flush()
    answer: dict[str, float] = json.loads(server.stdout.readline())
    return answer


def measured(size_mb: float, repeats: int, parent: Path, with_orbax: bool) -> Results:
    """Measures all systems in turn. The first save of each is not counted: it sets up what later ones use."""
    from bench.saves_tensorflow import Bench, keras_objects_async

    folder = Path(tempfile.mkdtemp(prefix="saves-", dir=parent))
    try:
        bench = Bench(size_mb, folder)
        with bench.run:
            ways = bench.ways()
            results = {way.name: Figures() for way in ways}
            for _ in range(WARM_UP_STEPS):
                bench.stepped()
            if with_orbax:
                results[ORBAX] = Figures()
                with orbax_server(size_mb, folder / "orbax") as server:
                    _take_turns(bench, ways, results, repeats, server)
            else:
                _take_turns(bench, ways, results, repeats, None)
        results[ASYNC].note = keras_objects_async(folder)
    finally:
        shutil.rmtree(folder)
    return results


def _take_turns(bench, ways, results: Results, repeats: int, server) -> None:  # type: ignore[no-untyped-def]
    for count in range(repeats + 1):
        for way in ways:
            numbers = measure(bench.stepped, way.save)
            if count:
                results[way.name].add(numbers)
        if server is not None:
            numbers = asked(server, "save")
            if count:
                results[ORBAX].add(numbers)
    for _ in range(RESTORES):
        for way in ways:
            if way.restore is not None:
                proof_ms = [timed(way.prove) * 1000] if way.prove is not None else []
                results[way.name].proof_ms += proof_ms
                results[way.name].restore_ms.append(timed(way.restore) * 1000 + sum(proof_ms))
        if server is not None:
            results[ORBAX].restore_ms.append(asked(server, "restore")["restore_ms"])


def harmed(kills: int, size_mb: float, parent: Path, with_orbax: bool) -> Harm:
    """The result of `saves_harm` for each system, or why there is none."""
    harm: Harm = {}
    for system in RECIPES:
        if system == ORBAX and not with_orbax:
            continue
        python = peer.binaries(peer.ORBAX) / "python" if system == ORBAX else Path(sys.executable)
        folder = Path(tempfile.mkdtemp(prefix="saves-", dir=parent))
        command = [python, "-m", "bench.saves_harm", system, folder, "--kills", str(kills), "--size", str(size_mb)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        try:
            ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=True)
            harm[system] = json.loads(ran.stdout.splitlines()[-1])
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"{system}: {error.stderr[-2000:]}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return harm


def spread(values: list[float]) -> str:
    """Median, and the middle half."""
    if not values:
        return "-"
    ranked = sorted(values)
    return f"{statistics.median(ranked):.3g} ({ranked[len(ranked) // 4]:.3g} to {ranked[3 * len(ranked) // 4]:.3g})"


def ratio(ours: list[float], theirs: list[float]) -> str:
    """Of each turn's two figures, as they met the same load; median, and the middle half."""
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=False) if other > 0)
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.2f} ({ratios[len(ratios) // 4]:.2f} to {ratios[3 * len(ratios) // 4]:.2f})"


def cost_table(results: dict[float, Results]) -> Table:
    costs = "lost per save, ms", "of TensorFlow's async", "durable, ms", "of the floor"
    table = Table("state", "system", *costs, "restore, ms", "its proof, ms", "written, MB")
    for size, systems in results.items():
        floor = systems[FLOOR].durable_ms
        for name, figures in systems.items():
            lost = spread(figures.loss_ms), ratio(figures.loss_ms, systems[ASYNC].loss_ms)
            durable = spread(figures.durable_ms), ratio(figures.durable_ms, floor)
            written = spread(figures.written_mb).partition(" ")[0]
            restore = spread(figures.restore_ms), spread(figures.proof_ms).partition(" ")[0]
            table.add_row(f"{size:g} MB", name, *lost, *durable, *restore, written)
        table.add_section()
    return table


def against_targets(results: dict[float, Results]) -> list[str]:
    """What was promised, and what came out; ratios of the medians of loss, as a single loss can be nothing."""
    lines = []
    for size, systems in results.items():
        loss = {name: statistics.median(system.loss_ms) for name, system in systems.items()}
        auto = AutoInterval()
        auto.record_save(max(loss[OURS], 0.0) / 1000, statistics.median(systems[OURS].durable_ms) / 1000)
        lines += [
            f"{size:g} MB: lost per save, of TensorFlow's sync save: {loss[OURS] / loss[SYNC]:.2f} (target 0.33), "
            f"of its async one: {loss[OURS] / loss[ASYNC]:.2f} (target 1)",
            f"{size:g} MB: request to durable, of the floor: training waits "
            f"{ratio(systems[WAITING].durable_ms, systems[FLOOR].durable_ms)} (target 1.2 from 100 MB on)",
            _restores(size, systems),
            f"{size:g} MB: loss with the automatic interval of {auto.interval_s:.0f} s (a failure every "
            f"{BETWEEN_FAILURES_S:.0f} s): {max(loss[OURS], 0.0) / 10 / auto.interval_s:.2f} % (target 3.5)",
        ]
        if systems[ASYNC].note:
            lines.append(f"{size:g} MB: {ASYNC} was given plain variables; it {systems[ASYNC].note}")
    return lines


def _restores(size: float, systems: Results) -> str:
    ours, theirs = systems[OURS], systems[SYNC].restore_ms
    alone = [whole - proof for whole, proof in zip(ours.restore_ms, ours.proof_ms, strict=True)]
    return (
        f"{size:g} MB: restore, of TensorFlow's: with its proof {ratio(ours.restore_ms, theirs)} (target 1.2), "
        f"without it, as a worker under the daemon has it: {ratio(alone, theirs)}"
    )


def harm_tables(harm: Harm) -> list[Table]:
    kills = Table("system", "a save, s", "files left", "MB left", "starts that failed", title="after the kills")
    for system, result in harm.items():
        if result["kills"]:
            columns = ("save_s", "left_files", "left_mb", "failed_starts")
            numbers = [result["kills"].get(name, result["kills"].get("error")) for name in columns]
            kills.add_row(
                system, *(f"{number:.3g}" if isinstance(number, float) else str(number) for number in numbers)
            )
    damage = Table("damage to the newest of three", *harm, title="restored after damage")
    for name in next(iter(harm.values()))["damage"]:
        outcomes = (str(result["damage"].get(name, "n/a")).partition(":")[0] for result in harm.values())
        damage.add_row(name, *outcomes)
    return [kills, damage]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 100, 400], help="MB of state")
    parser.add_argument("--repeats", type=int, default=10, help="saves of each system and size")
    parser.add_argument("--kills", type=int, default=20, help="kills of each system in the middle of saves; 0: none")
    parser.add_argument("--kill-size", type=float, default=50, help="MB of state during the kills")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure"
    )
    parser.add_argument("--no-orbax", action="store_true", help="leave out Orbax and its environment (730 MB)")
    options = parser.parse_args()
    with_orbax = not options.no_orbax
    if with_orbax:
        peer.binaries(peer.ORBAX)
    harm = harmed(options.kills, options.kill_size, options.folder, with_orbax)
    console, results = Console(width=180), {}
    for size in options.sizes:
        results[size] = measured(size, options.repeats, options.folder, with_orbax)
        console.print(cost_table({size: results[size]}))
    for table in harm_tables(harm):
        console.print(table)
    for line in (lines := against_targets(results)):
        console.print(line, highlight=False)
    costs = {
        f"{size:g} MB": {name: asdict(system) for name, system in systems.items()} for size, systems in results.items()
    }
    path = harness.write("saves", {"results": costs, "harm": harm, "targets": lines}, options.folder)
    saves_picture.draw(json.loads(path.read_text()), path.with_suffix(".svg"))


if __name__ == "__main__":
    main()
