"""Families of metrics as text: Prometheus' format 0.0.4, or OpenMetrics 1.0 for clients that accept it.

https://prometheus.io/docs/instrumenting/exposition_formats and https://prometheus.io/docs/specs/om/open_metrics_spec:
the two differ in the name of a counter's family, and in the last line. Our own code, because the daemon has to have
loaded what it may be asked for (its package can be replaced while it runs), and prometheus_client takes 3.7 MiB: it
brings HTTP servers, `ssl` and `email`. The tests read the text with prometheus_client.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from supervisor.control.metrics.table import MetricType, Value

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TOTAL = "_total"  # ends the name of every counter, but in OpenMetrics not that of its family
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_ESCAPED_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})  # of the plain format


@dataclass(slots=True)
class MetricFamily:
    """A metric with its values, by the values of its labels."""

    name: str
    kind: MetricType
    text: str
    labels: tuple[str, ...] = ()
    values: list[tuple[tuple[str, ...], float | tuple[int, float]]] = field(default_factory=list)

    def add(self, value: Value, *words: str) -> None:
        """Adds a value; one that is not known is left out. `words`: the values of the labels."""
        if value is not None:
            self.values.append((words, value))


def encode(families: Iterable[MetricFamily], accept: str) -> tuple[bytes, str]:
    """The text and its content type, in the format that the client's Accept header asks for."""
    types = [accepted.partition(";")[0].strip() for accepted in accept.split(",")]
    is_open = "application/openmetrics-text" in types
    lines: list[str] = []
    for family in families:
        name = family.name.removesuffix(_TOTAL) if is_open else family.name
        help_text = family.text.translate(_ESCAPED if is_open else _ESCAPED_HELP)
        lines += [f"# HELP {name} {help_text}\n", f"# TYPE {name} {family.kind}\n"]
        for words, value in family.values:
            labels = ",".join(
                f'{label}="{word.translate(_ESCAPED)}"' for label, word in zip(family.labels, words, strict=True)
            )
            braced = f"{{{labels}}}" if labels else ""
            if isinstance(value, tuple):
                count, total = value
                lines += [f"{family.name}_count{braced} {count}\n", f"{family.name}_sum{braced} {_number(total)}\n"]
            else:
                lines.append(f"{family.name}{braced} {_number(value)}\n")
    if is_open:
        lines.append("# EOF\n")
    return "".join(lines).encode(), OPEN_METRICS if is_open else TEXT


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
