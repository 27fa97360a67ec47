"""bench/results/saves.json as a picture: `python -m bench.saves_picture` draws it again."""

import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

OUTCOMES = ("n/a", "survived", "lost all", "crash", "wrong weights")
COLOURS = ("#e8e8e8", "#4c9f70", "#e3b23c", "#d1495b", "#5b2a86")
PANELS = (
    ("loss_ms", "training lost per save, ms"),
    ("durable_ms", "request to durable, ms"),
    ("restore_ms", "restore, ms"),
)


def draw(content: dict[str, Any], path: Path) -> None:
    """Medians with all their repeats, on a logarithmic axis where there are sizes; and what became of damaged ones."""
    figure, places = pyplot.subplots(2, 2, figsize=(15, 10), layout="constrained")
    for place, (name, title) in zip(places.flat, PANELS, strict=False):
        _bars(place, content["results"], name, title)
    _outcomes(places.flat[3], content["harm"])
    machine = content["machine"]
    figure.suptitle(f"Saves on {machine['cores']} cores, load {machine['load']:.1f}, Linux {machine['kernel']}")
    figure.savefig(path)
    pyplot.close(figure)


def _bars(place: Axes, results: dict[str, Any], name: str, title: str) -> None:
    systems = [
        system for system in next(iter(results.values())) if any(size[system][name] for size in results.values())
    ]
    height = 0.8 / len(results)
    for number, (size, figures) in enumerate(results.items()):
        at = [row + number * height for row in range(len(systems))]
        medians = [max(statistics.median(figures[system][name] or [0]), 0.0) for system in systems]
        place.barh(at, medians, height, label=size)
        for row, system in zip(at, systems, strict=True):
            place.plot(
                figures[system][name], [row] * len(figures[system][name]), ".", color="black", markersize=3, alpha=0.5
            )
    place.set_yticks([row + 0.4 - height / 2 for row in range(len(systems))], systems)
    place.invert_yaxis()
    place.set_xscale("symlog", linthresh=1)
    place.set_title(title)
    place.legend(loc="lower right")


def _outcomes(place: Axes, harm: dict[str, Any]) -> None:
    classes = list(next(iter(harm.values()))["damage"])
    rows = [
        [OUTCOMES.index(result["damage"][class_].partition(":")[0]) for result in harm.values()] for class_ in classes
    ]
    place.imshow(rows, cmap=ListedColormap(COLOURS), vmin=-0.5, vmax=len(OUTCOMES) - 0.5, aspect="auto")
    place.set_xticks(range(len(harm)), list(harm), rotation=20, ha="right")
    place.set_yticks(range(len(classes)), classes)
    for row, outcomes in enumerate(rows):
        for column, outcome in enumerate(outcomes):
            place.text(
                column,
                row,
                OUTCOMES[outcome],
                ha="center",
                va="center",
                fontsize=7,
                color="white" if outcome > 2 else "black",
            )
    place.set_title("newest of three checkpoints damaged, then a start")


if __name__ == "__main__":
    folder = Path(__file__).resolve().parent / "results"
    draw(json.loads((folder / "saves.json").read_text()), folder / "saves.svg")
