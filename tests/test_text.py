"""Text for people: lines break at words and go on below their own text, tables are aligned, and texts are tame."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedsynth.text import printable, rows_text, table, two_digits, wrapped

WORDS = st.lists(st.text("abcdefgh%-", min_size=1, max_size=12), min_size=1, max_size=40).map(" ".join)


@given(WORDS, st.integers(20, 100))
def test_lines_break_at_spaces_and_lose_nothing(text, width):
    lines = wrapped(text, width).split("\n")
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width for line in lines)


def test_a_line_goes_on_below_its_own_text():
    item = "- name: " + "word " * 30
    assert {line[:2] for line in wrapped(item, 40).split("\n")[1:]} == {"  "}
    assert wrapped("    " + "word " * 30, 40).split("\n")[1].startswith("    word")
    row = "auto              The default method, which surveys columns and measures the best pairs again"
    first, second, *_ = wrapped(row, 50).split("\n")
    assert first == "auto              The default method, which"
    assert second == " " * 18 + "surveys columns and measures the"
    narrow = "a name of forty characters, which is long  text"
    assert wrapped(narrow, 30) == "a name of forty characters,\nwhich is long  text"


def test_a_word_stays_whole_and_a_number_keeps_its_percent_sign():
    path = "/a/very/long/path/" * 10
    assert wrapped(f"see {path}", 40) == f"see\n{path}"
    assert wrapped("right in 50 % of cases", 12) == "right in\n50 % of\ncases"


def test_tables_are_aligned_and_as_wide_as_their_cells():
    assert table([("name", "rows"), ("a", "10,000"), ("longer", "1")]) == "\n".join(
        ["name      rows", "a       10,000", "longer       1"]
    )
    assert table([("a", "b"), ("cc", "d")], right=False) == "a   b\ncc  d"


def test_texts_of_others_are_one_printable_line():
    assert printable("a\x1b[2J\nb\u202e\tc\x00") == "a[2J b c"
    assert printable("x" * 50, 10) == "x" * 9 + "…"
    assert printable("Größe 身長") == "Größe 身長"


def test_two_digits_without_an_exponent():
    assert [two_digits(one) for one in (0, 0.0123, 9.96, 10.4, 1234.0)] == ["0", "0.012", "10", "10", "1,200"]
    assert rows_text(49.2) == "49 rows"
