"""Draws what a bench measured: for each figure, one bar a system, of every run, with all its values.

`panels` is what a bench's results say, in the order in which it is drawn; a bench that is not listed has no picture.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes

BARS_HEIGHT = 0.8  # of the distance between two systems
STYLE: Any = {"svg.hashsalt": "bench", "svg.fonttype": "none"}  # the same figures give the same, small file
OURS, OTHERS = "#2f6f9f", "#9a9a9a"

Values = dict[str, list[float]]  # by system
Panels = dict[str, Values]  # by what was measured, with its unit


def _by_figure(results: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]) -> Panels:
    """The panels of results that are kept by system and then by figure; systems without a value are left out."""
    return {
        title: {system: figures[figure] for system, figures in results.items() if figures[figure]}
        for figure, title in titles.items()
    }


def _daemon(content: Mapping[str, Any]) -> Panels:
    titles = {"respawn_ms": "kill -9 to the next process, ms", "rss_mib": "resident memory, MiB"}
    return _by_figure(content["results"], titles)


def _fleet(content: Mapping[str, Any]) -> Panels:
    most = max(content["programs"], key=int)
    titles = {
        "start_s": f"{most} programs started, s",
        "stop_s": f"{most} programs stopped, s",
        "respawn_ms": "kill -9 to the next process, ms",
        "answer_ms": "getAllProcessInfo answered, ms",
    }
    return _by_figure(content["programs"][most], titles)


def _saves(content: Mapping[str, Any]) -> Panels:
    panels: Panels = {}
    for size, systems in content["results"].items():
        titles = {"loss_ms": f"{size}: training lost per save, ms", "durable_ms": f"{size}: request to durable, ms"}
        panels |= _by_figure(systems, {**titles, "restore_ms": f"{size}: restore, ms"})
    return panels


def _relaunch(content: Mapping[str, Any]) -> Panels:
    return {"kill to the first new step, s": {system: parts["total"] for system, parts in content["seconds"].items()}}


def _goodput(content: Mapping[str, Any]) -> Panels:
    panels: Panels = {}
    for run in content["runs"]:
        values = panels.setdefault(f"goodput, a failure in {run['mean_s']:g} s", {})
        values.setdefault(run["system"], []).append(run["goodput"])
    return panels


def _mirror(content: Mapping[str, Any]) -> Panels:
    return {"disk to durable in the store, s": content["uploads_s"], "steps a second": content["steps_per_s"]}


PANELS: dict[str, Callable[[Mapping[str, Any]], Panels]] = {
    "daemon": _daemon,
    "fleet": _fleet,
    "saves": _saves,
    "relaunch": _relaunch,
    "goodput": _goodput,
    "mirror": _mirror,
}


def draw(name: str, runs: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Draws the runs of a bench into an SVG file; False if this bench has no picture."""
    if name not in PANELS:
        return False
    series = [PANELS[name](run) for run in runs]
    rows = {title: 0.5 + 0.35 * len(systems) for title, systems in series[0].items()}  # inches
    with matplotlib.rc_context(STYLE):
        figure, places = pyplot.subplots(
            len(rows),
            1,
            figsize=(9, sum(rows.values())),
            squeeze=False,
            layout="constrained",
            height_ratios=list(rows.values()),
        )
        for place, title in zip(places.flat, rows, strict=True):
            _draw_panel(place, title, [panels.get(title, {}) for panels in series])
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
    return True


def _draw_panel(place: Axes, title: str, runs: list[Values]) -> None:
    systems = list(runs[0])
    height = BARS_HEIGHT / len(runs)
    for number, values in enumerate(runs):
        for row, system in enumerate(systems):
            if not values.get(system):
                continue
            at = row + (number - (len(runs) - 1) / 2) * height
            colour = OURS if system.startswith(("stepkeeper", "mirror")) else OTHERS
            place.barh(at, statistics.median(values[system]), 0.9 * height, color=colour, alpha=1 - 0.35 * number)
            place.plot(values[system], [at] * len(values[system]), ".", color="black", markersize=3, alpha=0.6)
    place.set_yticks(range(len(systems)), systems)
    place.invert_yaxis()
    place.set_xlim(left=0)
    place.set_title(title, loc="left", fontsize=10)
    place.spines[["top", "right"]].set_visible(False)
