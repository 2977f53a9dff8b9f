"""The pictures of docs/concepts: they are what the script draws, pages show them, and what they say is true."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.concepts import demands, gallery, gates, ladder, slices, tiers, waits
from scripts.concepts.paper import LETTERS, THEMES, WIDTH, Picture, Theme
from slidegate import Limiter, MemoryStore
from slidegate.core import Limit
from slidegate.ops.command.explain.bursts import most_units
from slidegate.testing import FakeClock

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs" / "concepts").glob("*.md"))
PICTURES = gallery.pictures()
SVG = "{http://www.w3.org/2000/svg}"
TEXT_CONTRAST, LINE_CONTRAST = 4.5, 3.0


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as ``#0969da``, as WCAG 2 defines it."""
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# -- the files -----------------------------------------------------------------------------------------------------


def test_the_committed_pictures_are_those_that_the_script_draws() -> None:
    assert gallery.check() == []


@pytest.mark.parametrize("change", ["another", "missing", "left over"])
def test_a_picture_that_is_not_as_it_is_drawn_is_found(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    gallery.write()
    assert gallery.check() == []
    one = sorted(tmp_path.iterdir())[0]
    match change:
        case "another":
            one.write_text(one.read_text("utf-8").replace("</svg>", "<g/></svg>"), "utf-8")
        case "missing":
            one.unlink()
        case _:
            (tmp_path / "old-light.svg").touch()
    assert len(gallery.check()) == 1
    gallery.write()
    assert gallery.check() == []


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_page_shows_the_picture_and_says_what_is_on_it(picture: Picture) -> None:
    showing = [page.name for page in PAGES if picture.markup() in page.read_text("utf-8")]
    assert showing, f"no page of docs/concepts holds:\n{picture.markup()}"


def test_pages_show_no_other_pictures() -> None:
    shown = {name for page in PAGES for name in re.findall(r"images/([\w-]+\.svg)", page.read_text("utf-8"))}
    assert shown == {path.name for path in gallery.files()}


def test_every_page_about_a_concept_has_a_picture() -> None:
    without = [page.name for page in PAGES if "<picture>" not in page.read_text("utf-8")]
    assert set(without) <= {"proof.md"}


# -- what everybody can read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_has_a_title_a_description_and_letters_of_a_readable_size(picture: Picture, theme: Theme) -> None:
    drawing = ElementTree.fromstring(picture.svg(theme))
    assert drawing.attrib["role"] == "img"
    named = {part.attrib["id"]: part.text for part in drawing if "id" in part.attrib}
    assert drawing.attrib["aria-labelledby"].split() == list(named)
    assert list(named.values()) == [picture.title, unescape(picture.said)]
    assert float(drawing.attrib["font-size"]) == LETTERS
    assert not any("font-size" in part.attrib for part in drawing.iter(f"{SVG}text"))
    # On a telephone that is 375 wide, a page leaves 343 for a picture; smaller letters than 12 are hard to read.
    assert LETTERS * 343 / WIDTH > 12


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_letters_stand_out_from_the_ground(picture: Picture, theme: Theme) -> None:
    fills = {text.attrib["fill"] for text in ElementTree.fromstring(picture.svg(theme)).iter(f"{SVG}text")}
    assert {fill: contrast(fill, theme.ground) for fill in fills if contrast(fill, theme.ground) < TEXT_CONTRAST} == {}


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_marks_stand_out_from_the_ground(theme: Theme) -> None:
    for name in ("ours", "over", "other", "text", "faint"):
        assert contrast(getattr(theme, name), theme.ground) >= LINE_CONTRAST, name


def test_contrast_is_that_of_black_and_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


# -- what the pictures say -------------------------------------------------------------------------------------------


def test_the_table_of_ways_to_count_has_the_numbers_of_the_picture() -> None:
    page = (ROOT / "docs" / "concepts" / "fixed_and_sliding.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\w +]+) \| [^|]+ \| (\d+) \| [^|]+ \|$", page, re.MULTILINE)
    assert [(name, int(most)) for name, most in rows] == [
        (name, gates.worst_bursts(name)[gates.TICKS]) for name in gates.GATES
    ]


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("Log of times", Limit(gates.AMOUNT, "1m", resolution=gates.AMOUNT)),
        ("k + 1 slots", Limit(gates.AMOUNT, "1m", resolution=gates.SLICES)),
    ],
)
def test_the_worst_bursts_of_our_rings_are_those_that_explain_works_out(name: str, limit: Limit) -> None:
    """A client in steps of a tick gets what one in microseconds gets, but for the tick in which a span ends."""
    assert limit.window_us == gates.WINDOW_US
    drawn = gates.worst_bursts(name)
    for ticks in range(1, 2 * gates.TICKS + 1):
        assert drawn[ticks] <= most_units([limit], ticks * gates.TICK_US)
        assert drawn[ticks] >= most_units([limit], (ticks - 1) * gates.TICK_US + 1 - limit.slice_us)


def test_no_gate_of_ours_holds_more_than_the_amount_in_a_window_and_all_others_do() -> None:
    over = {name for name in gates.GATES if gates.worst_bursts(name)[gates.TICKS] > gates.AMOUNT}
    assert over == set(gates.GATES) - set(gates.OURS)


def test_the_classic_reading_breaks_the_bound_when_the_oldest_slice_is_forgotten() -> None:
    most = gates.worst_bursts("k slots")
    between = gates.TICKS - gates.TICKS // gates.SLICES  # ticks from the end of the slice until it is forgotten
    assert (most[between + 1], most[between + 2]) == (gates.AMOUNT, 2 * gates.AMOUNT)


def test_most_units_of_spans_are_those_of_a_plain_count() -> None:
    takes = (gates.Taken(3, 5), gates.Taken(4, 1), gates.Taken(9, 7))
    units = dict(takes)
    plain = [
        max(sum(units.get(tick, 0) for tick in range(start, start + length)) for start in range(15))
        for length in range(11)
    ]
    assert gates.most_in_spans([takes], 10) == plain


def test_slices_that_a_window_touches_are_those_of_its_ticks() -> None:
    for start in range(2 * slices.SLICE):
        plain = {tick // slices.SLICE for tick in range(start, start + gates.TICKS)}
        assert set(slices.touched(start)) == plain
    assert [len(slices.touched(start)) for start in slices.starts()] == [slices.FEW, slices.FEW + 1]


def test_the_page_about_retry_after_has_the_numbers_of_the_picture() -> None:
    page = (ROOT / "docs" / "concepts" / "retry_after.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(?:RateLimit`: `)?([\w-]+)` \| (\d+) \|", page, re.MULTILINE))
    r, t, reset_after = waits.fields()
    cost = 4
    assert rows == {
        "Retry-After": str(waits.waits_s()[cost]),
        "r": str(r),
        "t": str(t),
        "reset_after": str(reset_after),
    }
    assert f"for the cost of {cost} above" in page


async def test_the_fields_of_the_picture_are_those_of_a_decision() -> None:
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock=clock))
    limit = Limit(waits.AMOUNT, "1m", resolution=6)
    start_us = clock.now_us - clock.now_us % limit.slice_us + limit.slice_us
    for second, units in waits.SPENT:
        clock.set(start_us + second * waits.SECOND_US)
        assert await limiter.hit("client", limit, cost=units)
    clock.set(start_us + waits.ASKED_S * waits.SECOND_US)
    for cost, wait_s in waits.waits_s().items():
        refused = await limiter.hit("client", limit, cost=cost)
        assert refused.retry_after_us == wait_s * waits.SECOND_US
        state = refused.states[0]
        shown = (state.remaining, state.more_after_us, state.reset_after_us)
        r, t, reset_after = waits.fields()
        assert shown == (r, t * waits.SECOND_US, reset_after * waits.SECOND_US)


def test_each_tier_lets_the_limit_through_once_for_each_window() -> None:
    assert [tiers.admitted(tier) for tier in tiers.TIERS] == [400, 200, 100]


async def test_one_demand_charges_what_a_limiter_charges() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    for _ in range(demands.REQUESTS):
        decision = await limiter.hit("client", (demands.LARGE, demands.SMALL))
    spent = tuple(state.limit.amount - state.remaining for state in decision.states)
    assert spent == demands.spent_together() == (demands.SMALL.amount,) * 2
    assert demands.spent_one_by_one() == (demands.REQUESTS, demands.SMALL.amount)


def test_the_client_on_the_ladder_climbs_and_comes_down() -> None:
    bans, rungs = ladder.course()
    assert [(ban.from_h, ban.until_h - ban.from_h, ban.rung) for ban in bans] == [
        (10, 1, 1),
        (12, 4, 2),
        (18, 16, 3),
        (96, 4, 2),
    ]
    assert rungs == [(0, 0), (10, 1), (12, 2), (18, 3), (58, 2), (82, 1), (96, 2), (124, 1)]


def test_the_ladder_has_spans_of_whole_hours() -> None:
    assert [ladder.length(span_us) for span_us in ladder.POLICY.ladder_us] == ["1 h", "4 h", "16 h", "2 d 16 h", "7 d"]
