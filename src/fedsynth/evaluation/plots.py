"""Plots of a report as shapes, which its HTML page contains as inline SVG without scripts, fonts or image files.

Shapes have CSS classes instead of colours, so one plot works on light pages, dark pages and paper.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from fedsynth.errors import SchemaError, nearest, number_of
from fedsynth.evaluation.plot_data import Associations, ColumnPlotData, column_data
from fedsynth.evaluation.score import Score, Verdict
from fedsynth.files import write_whole
from fedsynth.models.card import percent_up

if TYPE_CHECKING:
    from fedsynth.rows import Table

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b3478a", "#a87500", "#3a8fc4", "#7a5195", "#666666")
LINES = len(_COLOURS)  # number of line colours
LINE_STYLE = "".join(f".line{at}{{fill:none;stroke:{colour};stroke-width:1.8}}" for at, colour in enumerate(_COLOURS))
"""The style (CSS) of the lines of :func:`curves`."""
_ALONE = (
    "text{font:11px sans-serif;fill:#555}.real{fill:#8b95a1}.synthetic{fill:#0b3f94}.hit{fill:transparent}"
    ".outline{fill:none;stroke:#0b3f94;stroke-width:2;stroke-linejoin:round}.rule{fill:none;stroke:#c9cfd5}"
    "svg{background:#fff}"
)
LEVELS = 10  # steps of colour to each side of zero in a heat map
_WIDTH = 340.0  # of a plot in a card: fits a phone unscaled
_HEIGHT = 168.0  # of the bars, unless categories need more
_CHARACTER = 6.4  # mean width of a character of the axis text
_BASE, _HIGH = _HEIGHT - 8, _HEIGHT - 26  # of upright bars: where zero is, and the largest height
_SLOT = 32.0  # width for a separate bar (atom or tail) in a histogram
_ROOM = 160.0  # least width for two texts above the bins of a histogram
_LEAST = 1.5  # least height of a bar, so that a tail of few rows is visible
_SHORTEST = 0.1  # of a ruler: share of the largest value on it
_VERDICTS: tuple[Verdict, ...] = ("alarm", "review", "good")
_ROLES = ("value", "below", "bin", "above", "missing")
_NAMES = 15  # characters of a column's name beside a heat map


@dataclass(frozen=True)
class Mark:
    """A coloured shape of a :class:`Chart`.

    ``css`` is the CSS class that colours it, ``path`` its SVG path data, ``tip`` its tooltip ("" for none).
    """

    css: str
    path: str
    tip: str = ""


@dataclass(frozen=True)
class Text:
    """A text of a :class:`Chart` at a point, in the chart's units.

    ``anchor`` says which part of the text is at the point: "start", "middle" or "end". ``turned`` text runs upwards;
    ``css`` is the CSS class that sets font and colour.
    """

    x: float
    y: float
    text: str
    anchor: str = "start"
    turned: bool = False
    css: str = "axis"


@dataclass(frozen=True)
class Chart:
    """A plot as shapes (``marks``, the first drawn first) and texts, for :func:`svg`; y points downwards.

    ``label`` describes it for screen readers.
    """

    width: float
    height: float
    label: str
    marks: tuple[Mark, ...]
    texts: tuple[Text, ...] = ()


def svg(chart: Chart, *, fixed: bool = False, style: str = "") -> str:
    """Return a plot as SVG text, for a page whose style sheet has the CSS classes of its shapes.

    With ``fixed`` or a ``style``, it has its own size; a ``style`` (CSS) makes it a stand-alone file.
    """
    head = f'role="img" aria-label="{escape(chart.label)}" viewBox="0 0 {chart.width:.4g} {chart.height:.4g}"'
    if fixed or style:
        head += f' width="{chart.width:.4g}" height="{chart.height:.4g}"'
    parts = [f"<svg {head}>"]
    if style:
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {head}>']
        parts.append(f"<style>{style}</style>")
    for mark in chart.marks:
        shape = f'<path class="{mark.css}" d="{mark.path}"'
        parts.append(f"{shape}><title>{escape(mark.tip)}</title></path>" if mark.tip else f"{shape}/>")
    for text in chart.texts:
        place = f'class="{text.css}" x="{text.x:.4g}" y="{text.y:.4g}"'
        anchor = f' text-anchor="{text.anchor}"' if text.anchor != "start" else ""
        turned = f' transform="rotate(-90 {text.x:.4g} {text.y:.4g})"' if text.turned else ""
        parts.append(f"<text {place}{anchor}{turned}>{escape(text.text)}</text>")
    return "".join(parts) + "</svg>"


@dataclass(frozen=True, repr=False)
class Plot:
    """A chart by itself: notebooks show it, and :meth:`save` writes it to a file."""

    chart: Chart

    def _repr_svg_(self) -> str:
        return svg(self.chart, style=_ALONE)

    def __repr__(self) -> str:
        return f"<plot: {self.chart.label} Notebooks show it; save('plot.svg') writes it.>"

    def save(self, path: Path | str) -> None:
        """Write the plot as an SVG file, which browsers and office programs open."""
        write_whole(Path(path), self._repr_svg_())


def column_plot(name: str, pictures: Sequence[ColumnPlotData]) -> Plot:
    """Return the plot of the column ``name`` of a report; raises :class:`SchemaError` for a column it does not have."""
    known = {picture.name: picture for picture in pictures}
    if name not in known:
        raise SchemaError(f"no column {name!r} to plot; {nearest(name, known, 'there are')}")
    chart, beside = distribution(known[name]), " (blue) beside real ones (grey)" if any(known[name].real) else ""
    title = Text(0, chart.height + 14, f"{clip(name, 24)}: synthetic rows{beside}", css="name")
    return Plot(replace(chart, height=chart.height + 18, texts=(*chart.texts, title)))


def synthetic_plot(name: str, synthetic: Table) -> Plot:
    """Return the plot of the column ``name`` of synthetic rows; errors are those of :func:`column_plot`."""
    return column_plot(name, [column_data(synthetic, known) for known in synthetic.schema.names])


def figure(value: float) -> str:
    """Return a number as text: three decimals, fewer from 10 on, and two significant digits below 0.01.

    A number that is not finite becomes "not defined".
    """
    if not math.isfinite(value):
        return "not defined"
    size = abs(value)
    if size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 10:
        text = f"{value:.1f}"
    elif size >= 0.01 or size == 0:
        text = f"{value:.3f}"
    else:
        text = f"{value:.2g}"
    return text.replace("-", "\u2212")


def percent(share: float) -> str:
    """Return a share (0 to 1) as text in percent: whole from 10 % on, with two significant digits below.

    A share that is not finite becomes "not defined".
    """
    if not math.isfinite(share):
        return "not defined"
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.2g} %"


def clip(text: str, most: int) -> str:
    """Return a text, cut in its middle if it is wider than ``most`` columns of a terminal; wide characters take two.

    An ellipsis stands for what was cut. The end is kept because names of one family differ there.
    """
    flat = " ".join(text.split())
    if _columns(flat) <= most:
        return flat
    tail = most // 3
    head = most - 1 - tail
    start = next(at for at in range(min(head, len(flat)), -1, -1) if _columns(flat[:at]) <= head)
    end = next(at for at in range(max(0, len(flat) - tail), len(flat) + 1) if _columns(flat[at:]) <= tail)
    return f"{flat[:start].rstrip()}…{flat[end:].lstrip()}"


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def moved(picture: ColumnPlotData) -> float:
    """Return the share of rows (0 to 1) that would have to move to another bar to make synthetic and real bars equal.

    ``picture`` holds the heights of the bars. The share is half their L1 distance.
    """
    return sum(abs(a - b) for a, b in zip(picture.real, picture.synthetic, strict=True)) / 2


def distribution(picture: ColumnPlotData) -> Chart:
    """Return the plot of one column, real and synthetic rows together, from its plot data ``picture``.

    A column with bins gets a histogram; others get bars, horizontal if the labels need more room.
    """
    label = _gist(picture)
    if picture.edges:
        return _histogram(picture, label)
    slot = _WIDTH / max(1, len(picture.labels))
    if all(_columns(name) * _CHARACTER < slot for name in picture.labels):
        return _upright(picture, label)
    return lying_bars(picture.labels, picture.real, picture.synthetic, label)


def lying_bars(
    labels: Sequence[str],
    real: Sequence[float],
    synthetic: Sequence[float],
    label: str,
    written: Callable[[float], str] = percent,
    *,
    values: bool = False,
    top: float | None = None,
) -> Chart:
    """Return a plot of horizontal bars, each synthetic one inside the real one.

    A value that is not finite has no bar. ``label`` describes the plot for screen readers, ``written`` turns a value
    into text, ``values`` also writes both values beside each bar. ``top`` is the value at the right end (default: the
    largest).
    """
    row = min(max(_HEIGHT / max(1, len(labels)), 11.5), 22.0)
    left = 132.0 if values else 118.0
    right = _WIDTH - (84.0 if values else 4.0)
    known = [value for value in (*real, *synthetic) if math.isfinite(value)]
    low, high = min([0.0, *known]), top if top is not None else max(known, default=1.0)
    scale = (right - left) / ((high - low) or 1.0)
    zero = left - low * scale
    bottom = row * len(labels)
    axis = [f"{one:.3g}".replace("-", "\u2212") if values else written(one) for one in (0.0, high)]
    marks = [Mark("rule", _line(zero, 0, zero, bottom)), Mark("rule", _line(right, 0, right, bottom))]
    texts = [
        Text(zero, bottom + 12, axis[0], "middle" if low else "start"),
        Text(right, bottom + 12, axis[1], "end"),
    ]
    for at, (name, one, two) in enumerate(zip(labels, real, synthetic, strict=True)):
        y = at * row
        for value, css, inset in ((one, "real", 0.1), (two, "synthetic", 0.32)):
            if math.isfinite(value):
                marks.append(Mark(css, _box(zero, y + inset * row, value * scale, (1 - 2 * inset) * row)))
        both = f"real {written(one)}, " if any(real) else ""
        marks.append(Mark("hit", _box(0, y, _WIDTH, row), f"{name}: {both}synthetic {written(two)}"))
        texts.append(Text(left - 6, y + row / 2 + 3.8, clip(name, int(left / 6.5)), "end", css="name"))
        if values:
            texts.append(Text(_WIDTH, y + row / 2 + 3.8, f"{written(two)} | {written(one)}", "end", css="name"))
    return Chart(_WIDTH, bottom + 16, label, tuple(marks), tuple(texts))


@dataclass(frozen=True)
class _Axis:
    """The vertical axis of a histogram: a share of ``top`` has the full height."""

    top: float

    def height(self, share: float) -> float:
        return max(share / self.top * _HIGH, _LEAST) if share else 0.0


@dataclass(frozen=True)
class _Histogram:
    """The parts of a histogram as they are drawn; tooltips (``hits``) lie above all ``marks``."""

    picture: ColumnPlotData
    marks: list[Mark] = field(default_factory=list)
    hits: list[Mark] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)

    def add_bar(self, at: int, start: float, slot: float, axis: _Axis, under: str) -> None:
        """Add a separate bar, the synthetic one inside the real one, in the middle of a slot."""
        middle, wide = start + slot / 2, min(30.0, slot - 6)
        real, synthetic = (axis.height(side[at]) for side in (self.picture.real, self.picture.synthetic))
        self.marks.append(Mark("real", _box(middle - wide / 2, _BASE, wide, -real)))
        self.marks.append(Mark("synthetic", _box(middle - wide / 5, _BASE, wide * 0.4, -synthetic)))
        self.hits.append(Mark("hit", _box(start, 0, slot, _BASE), _tip(self.picture, at)))
        self.texts.append(Text(middle, _BASE + 14, under, "middle"))

    def add_bins(self, bins: Sequence[int], left: float, right: float, axis: _Axis) -> None:
        """Add the bins, which fill the room from ``left`` to ``right``: real ones filled, synthetic ones as outline."""
        real, synthetic = self.picture.real, self.picture.synthetic
        step = (right - left) / len(bins)
        filled = "".join(
            _box(left + x * step + 0.5, _BASE, step - 1, -axis.height(real[at]))
            for x, at in enumerate(bins)
            if real[at]
        )
        outline = f"M{left:.4g} {_BASE:g}" + "".join(
            f"V{_BASE - axis.height(synthetic[at]):.1f}H{left + (x + 1) * step:.1f}" for x, at in enumerate(bins)
        )
        self.marks.extend((Mark("real", filled), Mark("outline", f"{outline}V{_BASE:g}")))
        for x, at in enumerate(bins):
            self.hits.append(Mark("hit", _box(left + x * step, 0, step, _BASE), _tip(self.picture, at)))
        first, middle, last = (_tick(self.picture.edges[at]) for at in (0, len(bins) // 2, -1))
        self.texts.extend((Text(left, _BASE + 14, first), Text(right, _BASE + 14, last, "end")))
        if sum(map(_columns, (first, last, middle))) * _CHARACTER + 24 < right - left and len(bins) > 1:
            self.texts.append(Text(left + len(bins) // 2 * step, _BASE + 14, middle, "middle"))


def _histogram(picture: ColumnPlotData, label: str) -> Chart:
    """Return bars of atoms, a histogram (real filled, synthetic as outline), and bars of tails and missing values.

    If the bar of an atom or of missing values is over twice as high as the others, the histogram and the tails have
    their own, enlarged scale.
    """
    at_of = {role: [at for at, one in enumerate(picture.roles) if one == role] for role in _ROLES}
    highest = [max(both) for both in zip(picture.real, picture.synthetic, strict=True)]
    alone = max((highest[at] for at in at_of["value"] + at_of["missing"]), default=0.0)
    top = max([1e-9, *(highest[at] for role in ("below", "bin", "above") for at in at_of[role])])
    enlarged = alone > 2 * top
    whole = _Axis(alone if enlarged else max(top, alone))
    part = _Axis(top) if enlarged else whole
    drawn = _Histogram(picture, _rules())
    left, right, above = 0.0, _WIDTH, _BASE - _HIGH - 5
    for at in at_of["value"]:
        under = clip(picture.labels[at], 8)
        slot = max(_SLOT, _columns(under) * _CHARACTER + 8)
        drawn.add_bar(at, left, slot, whole, under)
        left += slot
    for at in at_of["missing"]:
        right -= 50.0
        drawn.add_bar(at, right, 50.0, whole, "missing")
    left += 10.0 if at_of["value"] else 0.0
    right -= 8.0 if at_of["missing"] else 0.0
    if enlarged and not at_of["value"]:
        drawn.texts.append(Text(_WIDTH, above, percent(whole.top), "end"))
    else:
        drawn.texts.append(Text(0, above, percent(whole.top)))
    if enlarged:
        drawn.texts.append(Text(left, above, f"{percent(part.top)} (enlarged)"))
    if picture.logarithmic and right - left > _ROOM:
        drawn.texts.append(Text(right, above, "log axis", "end"))
        drawn.marks.extend(Mark("rule", _line(x, 0, x, _BASE)) for x in (left - 5, right + 4) if 0 < x < _WIDTH)
    for at in at_of["below"]:
        drawn.add_bar(at, left, _SLOT, part, "less")
        left += _SLOT + 2
    for at in at_of["above"]:
        right -= _SLOT
        drawn.add_bar(at, right, _SLOT, part, "more")
        right -= 2
    drawn.add_bins(at_of["bin"], left, right, part)
    return Chart(_WIDTH, _BASE + 20, label, (*drawn.marks, *drawn.hits), tuple(drawn.texts))


def _rules() -> list[Mark]:
    """Return the lines of an upright plot at its top and at zero."""
    return [Mark("rule", _line(0, y, _WIDTH, y)) for y in (_BASE - _HIGH, _BASE)]


def _upright(picture: ColumnPlotData, label: str) -> Chart:
    slot = _WIDTH / len(picture.labels)
    wide = min(56.0, slot * 0.62)
    top = max(*picture.real, *picture.synthetic, 1e-9)
    marks = _rules()
    texts = [Text(0, _BASE - _HIGH - 5, percent(top))]
    for at, (one, two) in enumerate(zip(picture.real, picture.synthetic, strict=True)):
        middle = (at + 0.5) * slot
        marks += [
            Mark("real", _box(middle - wide / 2, _BASE, wide, -one / top * _HIGH)),
            Mark("synthetic", _box(middle - wide / 5, _BASE, wide * 0.4, -two / top * _HIGH)),
            Mark("hit", _box(at * slot, 0, slot, _BASE), _tip(picture, at)),
        ]
        texts.append(Text(middle, _BASE + 14, picture.labels[at], "middle", css="name"))
    return Chart(_WIDTH, _BASE + 20, label, tuple(marks), tuple(texts))


def heat_map(names: Sequence[str], values: Sequence[Sequence[float]], limit: float, what: str) -> Chart:
    """Return an association matrix as a heat map, with its diagonal struck out; ``what`` is for screen readers.

    Colours are strongest at ``limit`` and -``limit``, and beyond.
    """
    cell = 17.0 if len(names) <= 20 else 13.0
    left = 106.0
    marks = []
    largest = (0.0, "")
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if x == y:
                at = left + x * cell
                marks.append(Mark("rule", _line(at, at, at + cell - 1, at + cell - 1)))
                continue
            tip = f"{names[y]} × {names[x]}: {figure(value)}"
            if abs(value) > abs(largest[0]):
                largest = (value, tip)
            marks.append(Mark(_level(value, limit), _box(left + x * cell, left + y * cell, cell - 1, cell - 1), tip))
    texts = [
        Text(left - 5, left + at * cell + cell / 2 + 3, clip(name, _NAMES), "end", css="name")
        for at, name in enumerate(names)
    ] + [
        Text(left + at * cell + cell / 2 + 3, left - 5, clip(name, _NAMES), turned=True, css="name")
        for at, name in enumerate(names)
    ]
    gist = f"Largest: {largest[1]}." if largest[1] else "All are zero."
    side = left + len(names) * cell
    return Chart(side, side, f"{what}, {number_of(len(names), 'column')}. {gist}", tuple(marks), tuple(texts))


def curves(
    label: str,
    lines: Mapping[str, Sequence[tuple[float, float, float]]],
    circles: Mapping[str, Sequence[tuple[float, float]]] = MappingProxyType({}),
) -> Chart:
    """Return a line chart: ``lines`` maps each line's name to its points (x, mean, deviation), drawn with error bars.

    Points are in ascending order of x, which is positive and on a logarithmic scale. ``circles`` are further points (x,
    y) beside lines, by their names: figures of others. Colours come from the CSS classes ``line0`` to ``line7``.
    """
    beside = {name: circles.get(name, ()) for name in lines}
    points = [point for line in lines.values() for point in line]
    points += [(x, y, 0.0) for some in beside.values() for x, y in some]
    xs = sorted({x for x, _, _ in points})
    low, high = min(y - d for _, y, d in points), max(y + d for _, y, d in points)
    left, right, top, base = 52.0, _WIDTH - 12, 8.0, 200.0
    reach = math.log(xs[-1] / xs[0]) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / xs[0]) / reach if len(xs) > 1 else 0.5
        return left + 10 + (right - left - 20) * across, base - (base - top) * ((y - low) / ((high - low) or 1.0))

    marks = [Mark("rule", _line(left, base, right, base)), Mark("rule", _line(left, top, left, base))]
    texts = [Text(left - 6, base, figure(low), "end"), Text(left - 6, top + 8, figure(high), "end")]
    texts += [Text(at(x, low)[0], base + 14, f"{x:g}", "middle") for x in xs]
    for number, (name, line) in enumerate(lines.items()):
        css = f"line{number % LINES}"
        places = [at(x, y) for x, y, _ in line]
        marks.append(Mark(css, "M" + "L".join(f"{x:.4g} {y:.4g}" for x, y in places)))
        for x, y, d in line:
            bar = _line(at(x, 0)[0], at(x, y - d)[1], at(x, 0)[0], at(x, y + d)[1])
            marks.append(Mark(css, bar, f"{name}, {x:g}: {figure(y)} ± {figure(d)}"))
        for x, y in beside[name]:
            across, down = at(x, y)
            ring = f"M{across - 3.5:.4g} {down:.4g}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0"
            marks.append(Mark(css, ring, f"{name}, {x:g}, published: {figure(y)}"))
        row = base + 32 + 15 * number
        marks.append(Mark(css, _line(left, row - 4, left + 18, row - 4)))
        texts.append(Text(left + 24, row, clip(name, 44), css="name"))
    return Chart(_WIDTH, base + 32 + 15 * len(lines), label, tuple(marks), tuple(texts))


def difference(matrices: Associations) -> list[list[float]]:
    """Return the matrix of synthetic minus real associations, as a list of rows."""
    return [
        [two - one for one, two in zip(*rows, strict=True)]
        for rows in zip(matrices.real, matrices.synthetic, strict=True)
    ]


def colour_limit(matrices: Associations) -> float:
    """Return the common colour limit of a report's heat maps: real associations, synthetic ones and their difference.

    It is the largest absolute value off the diagonal of these matrices, rounded up to a tenth, at least 0.1.
    """
    off = [
        abs(value)
        for matrix in (matrices.real, matrices.synthetic, difference(matrices))
        for y, row in enumerate(matrix)
        for x, value in enumerate(row)
        if x != y and math.isfinite(value)
    ]
    return max(0.1, math.ceil(max(off, default=0.0) * 10 - 1e-9) / 10)


def gauge(verdict: Verdict) -> Chart:
    """Return a scale of the three verdicts, from alarm to good, with a dot in the zone of ``verdict``.

    The scale orders verdicts and measures nothing: a score's own value has another scale in each metric.
    """
    width, wide, y = 260.0, 260.0 / len(_VERDICTS), 12.0
    marks = [Mark(f"zone {zone}", _box(at * wide + 1, y - 6, wide - 2, 12)) for at, zone in enumerate(_VERDICTS)]
    texts = [Text((at + 0.5) * wide, y + 22, zone, "middle") for at, zone in enumerate(_VERDICTS)]
    middle = (_VERDICTS.index(verdict) + 0.5) * wide
    marks.append(Mark(f"dot {verdict}", f"M{middle - 7:.4g} {y:g}a7 7 0 1 0 14 0a7 7 0 1 0 -14 0z"))
    return Chart(width, 38, f"On the scale alarm, review, good: {verdict}", tuple(marks), tuple(texts))


def certainty_scale(certainty: float, verdict: Verdict) -> Chart:
    """Return a line from guessing (50 %) to certainty (100 %) with the best attacker's ``certainty`` (1/2 to 1) on it.

    The dot has the colour of ``verdict``, or its own without one.
    """
    width, y, inset = 260.0, 12.0, 8.0
    at = inset + (width - 2 * inset) * (2 * certainty - 1)
    marks = (
        Mark("rule", _line(inset, y, width - inset, y)),
        Mark("tick", _line(inset, y - 7, inset, y + 7)),
        Mark("tick", _line(width - inset, y - 7, width - inset, y + 7)),
        Mark("whisker", _line(inset, y, at, y)),
        Mark(f"dot {verdict or 'plain'}", f"M{at - 7:.4g} {y:g}a7 7 0 1 0 14 0a7 7 0 1 0 -14 0z"),
    )
    texts = (Text(0, y + 22, "50 % guessing"), Text(width, y + 22, "certain 100 %", "end"))
    label = f"The best attacker is right in at most {percent_up(certainty)} of cases, on a line from 50 % to 100 %"
    return Chart(width, 38, label, marks, texts)


def ruler(score: Score) -> Chart | None:
    """Return a plot of a score on a line: the reference, the synthetic value, their intervals, and the best value.

    The line is at least a tenth as long as the largest of these values, so that values that differ by little lie side
    by side. None if the synthetic value is not finite.
    """
    if not math.isfinite(score.synthetic.value):
        return None
    sides = (score.synthetic, score.reference)
    known = [one for side in sides for one in (side.value, side.low, side.high) if math.isfinite(one)]
    if score.best is not None:
        known.append(score.best)
    low, high = min(known), max(known)
    spare = max(0.0, (_SHORTEST * max(abs(low), abs(high)) or 1.0) - (high - low))
    ends = (score.best == low, score.best == high)
    above = {(True, False): 1.0, (False, True): 0.0, (True, True): float(low <= 0)}.get(ends, 0.5)
    low, high = low - (1 - above) * spare, high + above * spare  # the best value stays at its end
    width, y = 220.0, 15.0

    def x(value: float) -> float:
        return 8 + (width - 16) * (value - low) / (high - low)

    marks = [Mark("rule", _line(0, y, width, y))]
    if math.isfinite(score.reference.low) and math.isfinite(score.reference.high):
        start, end = x(score.reference.low), x(score.reference.high)
        marks.append(Mark("real soft", _box(start, y - 8, max(end - start, 2), 16)))
    if math.isfinite(score.reference.value):
        marks.append(Mark("tick", _line(x(score.reference.value), y - 11, x(score.reference.value), y + 11)))
    if score.best is not None:
        at = x(score.best)
        marks.append(Mark("best", f"M{at:.1f} {y + 13:g}l4 -6l-4 -6l-4 6z"))
    if math.isfinite(score.synthetic.low) and math.isfinite(score.synthetic.high):
        marks.append(Mark("whisker", _line(x(score.synthetic.low), y, x(score.synthetic.high), y)))
    at = x(score.synthetic.value)
    marks.append(Mark("synthetic", f"M{at - 5:.1f} {y:g}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z"))
    label = f"{score.name}: synthetic {figure(score.synthetic.value)}, reference {figure(score.reference.value)}"
    if score.best is not None:
        label += f", best {figure(score.best)}"
    return Chart(width, 30, label, tuple(marks))


def _gist(picture: ColumnPlotData) -> str:
    gaps = [abs(a - b) for a, b in zip(picture.real, picture.synthetic, strict=True)]
    if not gaps:
        return f"{picture.name}: no values"
    axis = ", logarithmic axis" if picture.logarithmic else ""
    if not any(picture.real):
        return f"{picture.name}, synthetic rows in {len(gaps)} bars{axis}."
    return (
        f"{picture.name}, real against synthetic in {len(gaps)} bars{axis}; {percent(moved(picture))} of the rows "
        f"differ. Largest difference at {_tip(picture, gaps.index(max(gaps)))}."
    )


def _tip(picture: ColumnPlotData, at: int) -> str:
    real = f"real {percent(picture.real[at])}, " if any(picture.real) else ""
    return f"{picture.labels[at]}: {real}synthetic {percent(picture.synthetic[at])}"


def _tick(edge: float | str) -> str:
    if isinstance(edge, str):
        return edge
    return (f"{edge:,.0f}" if 1000 <= abs(edge) < 1e9 else f"{edge:.3g}").replace("-", "\u2212")


def _level(value: float, limit: float) -> str:
    """Return the CSS class of a heat map's colour, from ``n10`` (most negative) through ``z`` to ``p10``."""
    if not math.isfinite(value):
        return "undefined"
    step = round(max(-1.0, min(1.0, value / limit)) * LEVELS)
    return "z" if step == 0 else f"{'p' if step > 0 else 'n'}{abs(step)}"


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.4g} {y:.4g}h{width:.4g}v{height:.4g}h{-width:.4g}z"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"M{x1:.4g} {y1:.4g}L{x2:.4g} {y2:.4g}"
