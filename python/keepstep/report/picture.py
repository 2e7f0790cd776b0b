"""The loss of a run as a PNG, with the faults marked and the phases of each recovery below."""

from __future__ import annotations

from pathlib import Path

from keepstep.report import words
from keepstep.report.analysis import Analysis
from keepstep.report.recovery import PHASE_TITLES, PHASES

# Also distinguishable by colorblind readers (Okabe and Ito, 2008).
PHASE_COLOURS = {
    "detect": "#999999",
    "decide": "#D55E00",
    "interrupt": "#E69F00",
    "re_form": "#0072B2",
    "hydrate": "#009E73",
    "first_step": "#56B4E9",
}
LABEL_ROWS = 6
LOSS_COLOUR = "#0072B2"
FAULT_COLOUR = "#D55E00"


def draw_picture(analysis: Analysis, path: Path) -> None:
    """Writes a PNG of the loss by step and, if anything failed, a bar per recovery in milliseconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = len(analysis.recoveries)
    below = 0.7 + 0.35 * rows
    figure, axes = pyplot.subplots(
        2 if rows else 1,
        1,
        figsize=(9, 4 + (below if rows else 0)),
        height_ratios=[4, below] if rows else None,
        squeeze=False,
        layout="constrained",
    )
    _draw_loss(analysis, axes[0][0])
    if rows:
        _draw_phases(analysis, axes[1][0])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def _draw_loss(analysis: Analysis, axis: object) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

    assert isinstance(axis, Axes)
    known = [(commit.step, commit.loss) for commit in analysis.commits if commit.loss is not None]
    axis.plot([step for step, _ in known], [loss for _, loss in known], color=LOSS_COLOUR, linewidth=1.4)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("step")
    axis.set_ylabel("loss (nats per byte)")
    axis.set_title(f"{analysis.world_size} ranks, {len(analysis.recoveries)} recoveries")
    axis.margins(x=0.02)
    for number, recovery in enumerate(analysis.recoveries):
        if recovery.step is None:
            continue
        height = 0.97 - 0.1 * (number % LABEL_ROWS)  # neighboring labels must not overlap
        axis.axvline(recovery.step, color=FAULT_COLOUR, linewidth=1, linestyle="--")
        label = f"{words.what_happened(recovery)}\n{words.milliseconds(recovery.downtime_s)} ms"
        axis.annotate(
            label,
            (recovery.step, height),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color=FAULT_COLOUR,
        )


def _draw_phases(analysis: Analysis, axis: object) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axis, Axes)
    for row, recovery in enumerate(analysis.recoveries):
        left = 0.0
        for phase in PHASES:
            width = (recovery.phases_s()[phase] or 0.0) * 1000
            axis.barh(
                row, width, left=left, color=PHASE_COLOURS[phase], label=PHASE_TITLES[phase] if row == 0 else None
            )
            left += width
    axis.set_yticks(range(len(analysis.recoveries)), [f"recovery {i + 1}" for i in range(len(analysis.recoveries))])
    axis.invert_yaxis()
    axis.set_xlabel("ms since the fault (since its detection where its time is unknown)")
    axis.legend(ncols=len(PHASES), fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
