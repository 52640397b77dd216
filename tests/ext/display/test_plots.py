"""The plots: what they show, that their axes say their units, and that pyplot stays out."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from fusec.report import Timing
from fusec.tuning_report import Trial, TuningRun
from fuselab.display.plots import figures
from fuselab.display.plots.figures import edit_figure, figure_png, speed_figure
from fuselab.display.plots.search import SearchPicture, tuning_figure, tuning_spots
from fuselab.display.plots.tuning import outcome_figure
from support.panel_fake import FakeCell, timing
from support.processes import run_python


def texts(figure: Figure) -> str:
    import matplotlib.text

    return " | ".join(t.get_text() for t in figure.findobj(matplotlib.text.Text) if t.get_text())


def trial(value: int, ms: float | None) -> Trial:
    values = (("GRAIN", value),)
    return Trial(values, None, "too large") if ms is None else Trial(values, timing(ms))


def tuned(*times: float | None, eager: float | None = 9.0, best: int | None = None) -> TuningRun:
    trials = tuple(trial(i, ms) for i, ms in enumerate(times))
    done = [(ms, i) for i, ms in enumerate(times) if ms is not None]
    best = min(done)[1] if best is None and done else best
    return TuningRun("k", trials, best, 10, timing(eager) if eager else None, "", 1.0)


class TestSpeed:
    def test_bars_say_times_units_and_ratio(self):
        figure = speed_figure(timing(9.0), timing(3.0), title="cell_3")
        shown = texts(figure)
        for text in ("cell_3", "eager", "fused", "9.00 ms", "3.00 ms  3.0× faster", "(ms)"):
            assert text in shown
        assert "quartiles" in shown

    def test_kernels_shares_add_up(self):
        kernels = {f"k{i}": timing(float(i + 1)) for i in range(12)}
        figure = speed_figure(timing(90.0), timing(70.0), kernels)
        assert "5 more" in texts(figure)
        shares = figure.axes[1]
        assert sum(bar.get_width() for bar in shares.patches) == pytest.approx(100)
        assert "%" in shares.get_xlabel()

    def test_other_compilers_stand_between(self):
        figure = speed_figure(timing(9.0), timing(3.0), others={"inductor": timing(4.0)})
        labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert labels == ["eager", "inductor", "fused"]

    @pytest.mark.parametrize(("ms", "unit"), [(3e3, "(s)"), (3.0, "(ms)"), (0.03, "(µs)")])
    def test_unit_suits_the_time(self, ms, unit):
        assert unit in speed_figure(timing(ms), timing(ms / 2)).axes[0].get_xlabel()

    def test_nothing_measured(self):
        assert figure_png(speed_figure(None, None))

    def test_zero_and_upside_down_quartiles(self):
        odd = Timing(0.0, 0.0, 0.0, 1, "")
        assert figure_png(speed_figure(odd, odd, {"k": odd}))
        assert figure_png(speed_figure(Timing(1.0, 2.0, 0.5, 1, ""), odd))


class TestTuning:
    def test_every_configuration_and_the_best(self):
        figure = tuning_figure(tuned(3.0, 2.0, None, 4.0))
        shown = texts(figure)
        assert "best so far: GRAIN=1, 2.00 ms" in shown
        assert "failed" in shown
        assert "eager in the search's own run: 9.00 ms" in shown
        assert "4 of 10" in shown
        assert "(ms)" in figure.axes[0].get_ylabel()
        medians = [bars.lines[0].get_xydata().tolist() for bars in figure.axes[0].containers]
        assert medians == [[[1.0, 3.0], [4.0, 4.0]], [[2.0, 2.0]]]

    def test_eager_far_above_leaves_room_for_the_rest(self):
        figure = tuning_figure(tuned(0.3, 0.2, eager=100.0))
        assert figure.axes[0].get_ylim()[1] < 1.0
        assert "off the top" in texts(figure)

    def test_wide_spread_is_logarithmic(self):
        assert tuning_figure(tuned(1.0, 100.0)).axes[0].get_yscale() == "log"
        assert tuning_figure(tuned(1.0, 2.0)).axes[0].get_yscale() == "linear"

    @pytest.mark.parametrize("run", [tuned(), tuned(None, None), tuned(2.0, eager=None)])
    def test_beginnings(self, run):
        assert figure_png(tuning_figure(run)).startswith(b"\x89PNG")


def test_edit_figure():
    figure = edit_figure([("generated", timing(3.0)), ("edited", timing(2.0)), ("eager", None)])
    assert "2.00 ms  1.50× faster" in texts(figure)


def test_background_is_white_whatever_the_style():
    import matplotlib
    import matplotlib.colors
    import matplotlib.text

    dark = dict.fromkeys(("figure.facecolor", "axes.facecolor"), "black")
    dark |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), "white")
    with matplotlib.rc_context(dark):
        made = [
            speed_figure(timing(9.0), timing(3.0), {"k": timing(3.0), "l": timing(1.0)}, title="t"),
            tuning_figure(tuned(3.0, 2.0, None)),
        ]
        for figure in made:
            figure_png(figure)
    for figure in made:
        assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
        for axes in figure.axes:
            assert axes.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
        for text in figure.findobj(matplotlib.text.Text):
            if text.get_text():
                assert max(matplotlib.colors.to_rgb(text.get_color())) < 0.2, text.get_text()


def test_a_trial_in_words():
    assert str(Trial((("A", 1), ("B", 2)), None)) == "A=1 B=2"
    assert str(Trial((("A", 1),), None, plan="prefetch=0")) == "prefetch=0 A=1"
    assert str(Trial((), None)) == "as generated"


def test_pyplot_is_not_imported():
    code = (
        "import sys; sys.path[:0] = ['tests']\n"
        "from support.panel_fake import timing\n"
        "from fuselab.display.plots.figures import *\n"
        "figure_png(speed_figure(timing(9.0), timing(3.0), {'k': timing(3.0)}))\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    assert run_python(code).strip() == "False"


def test_real_run_of_the_fake():
    run = FakeCell().kernels["gelu_norm"].tune(budget=5.0)
    assert figure_png(tuning_figure(run)).startswith(b"\x89PNG")


def test_the_line_of_a_part_says_that_eager_ran_the_whole_cell() -> None:
    run = tuned(2.0, 3.0, eager=9.0)
    assert "| eager in the search's own run: 9.00 ms" in texts(tuning_figure(run))
    whole = texts(tuning_figure(replace(run, eager_is_whole=True)))
    assert "the whole cell in eager, in the search's own run: 9.00 ms" in whole


def test_configurations_are_counted_in_whole_numbers() -> None:
    axes = tuning_figure(tuned(*(2.0 + i for i in range(4)))).axes[0]
    assert all(tick == int(tick) for tick in axes.get_xticks())


def pixels(png: bytes) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("L")).astype(int)


def test_a_picture_drawn_again_is_the_one_drawn_afresh() -> None:
    """A live search redraws its points alone; nothing of what was there before may stay."""
    picture = SearchPicture()
    runs = [
        tuned(3.0, 2.0, eager=4.0),
        tuned(3.0, 2.0, None, 1.0, eager=4.0),  # another is the best, one has failed
        tuned(3.0, 2.0, None, 1.0, 2.5, eager=4.0),
        tuned(3.0, 30.0, eager=4.0),  # other axes
        tuned(3.0, 300.0, eager=4.0),  # logarithmic ones
        tuned(),
        tuned(3.0, 2.0, eager=4.0),
    ]
    before: bytes = b""
    for run in runs:
        png, spots = picture.draw(run)
        fresh, fresh_spots = SearchPicture().draw(run)
        assert np.array_equal(pixels(png), pixels(fresh))
        assert spots == fresh_spots
        assert png != before
        before = png
        figure = tuning_figure(run)
        whole = pixels(figure_png(figure))
        assert tuning_spots(figure, run) == spots
        # Lines that cross a point lie above it in one and below it in the other.
        assert (np.abs(whole - pixels(png)) > 64).mean() < 0.002


def test_axes_stay_while_the_times_do() -> None:
    picture = SearchPicture()
    picture.draw(tuned(3.0, 2.0, eager=4.0))
    axes = picture._figure.axes[0]
    picture.draw(tuned(3.0, 2.0, 3.1, eager=4.0))
    assert picture._figure.axes[0] is axes
    picture.draw(tuned(3.0, 9.0, eager=4.0))
    assert picture._figure.axes[0] is not axes


def test_one_disturbed_measurement_does_not_press_the_others_together() -> None:
    run = tuned(0.08, 0.056, 0.057, eager=None)
    noisy = replace(run.trials[1].timing, high=0.9e-3)
    trials = (run.trials[0], replace(run.trials[1], timing=noisy), run.trials[2])
    axes = tuning_figure(replace(run, trials=trials)).axes[0]
    assert axes.get_ylim()[1] < 200
    assert "(µs)" in axes.get_ylabel()
    figure = speed_figure(timing(0.08), noisy)
    assert "(ms)" in figure.axes[0].get_xlabel()
    assert figure.axes[0].get_xlim()[1] < 0.3


def test_words_beside_a_bar_are_never_cut() -> None:
    eager = Timing(1.21e-3, 1.20e-3, 7.79e-3, 7, "")
    noisy = Timing(6.33e-3, 4.07e-3, 15.1e-3, 7, "")
    figure = figures.blank(1.5)
    names = "training_gelu_layer_norm, generated", "training_gelu_layer_norm, edit"
    times = [(names[0], eager, figures.EAGER), (names[1], noisy, figures.FUSED)]
    figures.bars(figure.subplots(), times, reference=eager)
    figures.figure_png(figure)
    figure.set_layout_engine("none")  # as it was written
    assert figure.get_tightbbox().x1 <= figure.get_figwidth()


def test_words_beside_a_configuration_with_a_long_name_are_not_cut() -> None:
    run = tuned(0.63, 0.52, 0.53, 0.54, 0.55, 0.56, eager=None)
    values = (("TILE_ROWS", 512), ("TILE_COLUMNS", 64), ("UNROLL", 8))
    trials = []
    for n, trial in enumerate(run.trials):
        assert trial.timing is not None
        noisy = replace(trial.timing, low=0.4 * trial.timing.median, high=1.5 * trial.timing.median)
        trials.append(replace(trial, values=values, timing=noisy, plan="prefetch=0" if n else ""))
    figure = outcome_figure(replace(run, trials=tuple(trials), best=0, stopped="finished"))
    figures.figure_png(figure)
    assert not figures._is_cut(figure)
