"""Two small figures: time and peak memory against model size, and against revisions."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.figures import plotting
from flatminima.figures.plotting import GREY, PAGE_IN, Look

_LOOKS = {"whole model": Look("black", "-", "o"), "streamed": plotting.LOOKS["low_bit"]}
_PANELS = (("seconds", "time (s)"), ("mib", "peak memory (MiB)"))


def draw_sizes(lines: Sequence[dict]) -> Figure:
    """Time and peak memory of a probe against the model's parameters, whole and streamed."""

    def finish(axes: Axes, key: str) -> None:
        plotting.log_axis(axes.xaxis)
        plotting.log_axis(axes.yaxis)
        axes.set_xlabel("parameters (millions)")
        if key == "mib":
            sizes = sorted({line["parameters"] / 1e6 for line in lines})
            bytes_of = [4e6 * size / 2**20 for size in sizes]
            axes.plot(sizes, bytes_of, color=GREY, lw=0.8, ls=":", label="weights in float32")
        axes.legend(frameon=False)

    return _draw(lines, lambda line: line["parameters"] / 1e6, finish,
                 "One probe (FP32, INT4, INT8) of Pythia's shapes, 128 tokens")  # fmt: skip


def draw_revisions(lines: Sequence[dict]) -> Figure:
    """Time and peak memory of a job against the number of checkpoints that it probes."""

    def finish(axes: Axes, key: str) -> None:
        axes.set_ylim(0, 1.15 * max(line[key] for line in lines))
        axes.set_xlim(0)
        axes.set_xlabel("revisions in one job")

    return _draw(lines, lambda line: line["revisions"], finish,
                 "A probing job over small models (14m shape, 512 tokens)")  # fmt: skip


def _draw(
    lines: Sequence[dict], x: Callable[[dict], float], finish: Callable[[Axes, str], None],
    title: str,
) -> Figure:  # fmt: skip
    with plotting.style():
        figure = Figure(figsize=(0.75 * PAGE_IN, 2.3))
        panels = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.1, right=0.985, bottom=0.17, top=0.86, wspace=0.32)
        for axes, (key, label) in zip(panels, _PANELS, strict=True):
            for way, look in _LOOKS.items():
                of_way = [line for line in lines if line["way"] == way]
                axes.plot(
                    [x(line) for line in of_way], [line[key] for line in of_way],
                    color=look.color, ls=look.linestyle, marker=look.marker, label=way,
                )  # fmt: skip
            axes.set_ylabel(label)
            finish(axes, key)
        plotting.put_title(figure, title, x=0.1, y=0.985)
    return figure
