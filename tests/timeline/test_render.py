"""The timeline as text and as a picture."""

from __future__ import annotations

from xml.etree import ElementTree

from airflow_provider_segments.model.interval import Interval, parse_chunk
from airflow_provider_segments.timeline import Timeline, VersionedSegment, as_svg, as_text
from airflow_provider_segments.timeline.render import ranges


def example() -> Timeline[None]:
    """A day of old segments, one group in standby, one removed segment, and a newer hour."""
    timeline: Timeline[None] = Timeline("orders")
    day, hour = parse_chunk("2013-01-31"), parse_chunk("2013-01-31T07")
    timeline.add_all([VersionedSegment(day, "1<", id_, None) for id_ in range(5)])
    timeline.add(VersionedSegment(day, "1<", 5, None, (0, 1)))
    timeline.add(VersionedSegment(day, "1<", 6, None, (2,), (6, 7)))
    timeline.remove(VersionedSegment(day, "1<", 4, None))
    timeline.add(VersionedSegment(hour, "2", 0, None))
    return timeline


def test_the_text_has_a_line_for_each_interval_version_and_state() -> None:
    """Counts and ids; what is known and not in service is called offline."""
    assert as_text(example()).splitlines() == [
        "interval                                   version  state         count  partitions",
        "-----------------------------------------------------------------------------------",
        "2013-01-31T00:00:00Z/2013-02-01T00:00:00Z  1<       visible       3      2-3, 5",
        "2013-01-31T00:00:00Z/2013-02-01T00:00:00Z  1<       standby       1      6",
        "2013-01-31T00:00:00Z/2013-02-01T00:00:00Z  1<       overshadowed  2      0-1",
        "2013-01-31T00:00:00Z/2013-02-01T00:00:00Z  1<       offline       1      4",
        "2013-01-31T07:00:00Z/2013-01-31T08:00:00Z  2        visible       1      0",
    ]


def test_the_picture_is_well_formed_and_shows_every_chunk_and_every_visible_stretch() -> None:
    """Names are escaped; the black lines are the pieces, cut at the newer hour."""
    root = ElementTree.fromstring(as_svg(example(), title="a & b"))
    space = "{http://www.w3.org/2000/svg}"
    rects = root.findall(f"{space}rect")
    lines = [one for one in rects if one.get("fill") == "#000"]
    assert len(lines) == len(example().pieces()) == 3
    assert len([one for one in rects if one.get("fill") == "none"]) == 2
    assert [one.text for one in root.findall(f"{space}text")][:3] == ["a & b", "2", "1<"]
    titles = [one.text for one in root.iter(f"{space}title")]
    assert "2013-01-31T00:00:00Z/2013-02-01T00:00:00Z version 1<: overshadowed 0-1" in titles
    starts = [float(one.get("x", "")) for one in lines]
    ends = [start + float(one.get("width", "")) for start, one in zip(starts, lines, strict=True)]
    assert abs(ends[0] - starts[1]) < 0.2
    assert abs(ends[1] - starts[2]) < 0.2


def test_an_empty_timeline_has_a_head_and_a_picture() -> None:
    """Nothing to divide by."""
    assert as_text(Timeline()).splitlines()[0].split() == ["interval", "version", "state", "count", "partitions"]
    assert ElementTree.fromstring(as_svg(Timeline())).tag.endswith("svg")


def test_unnamed_versions_are_shown_as_a_dash() -> None:
    """Segments from before there were versions."""
    timeline: Timeline[None] = Timeline()
    timeline.add(VersionedSegment(Interval(0, 1), "", 0, None))
    assert as_text(timeline).splitlines()[2].split()[1] == "-"


def test_ids_are_shown_as_ranges() -> None:
    """Runs of ids are joined."""
    assert ranges([0, 1, 2, 4, 7, 8]) == "0-2, 4, 7-8"
    assert ranges([]) == ""
