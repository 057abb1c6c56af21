"""Range and conditional requests, decided from header values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.daemon.local.conditions import check_match, choose_range, is_unchanged, range_applies, strong_etag
from patchswarm.daemon.local.errors import PreconditionFailedError, UnsatisfiableRangeError

CONTENT = bytes(range(256))
SIZES = st.integers(0, 300)


def cut(header, content):
    """What the chosen range is of `content`, or None when the header is ignored."""
    chosen = choose_range(header, len(content))
    if chosen is None:
        return None
    first, last = chosen
    assert 0 <= first < last <= len(content)
    return content[first:last]


@given(SIZES, SIZES)
def test_a_range_is_a_slice(first, last):
    header = f"bytes={first}-{last}"
    if last < first:
        assert cut(header, CONTENT) is None
    elif first >= len(CONTENT):
        with pytest.raises(UnsatisfiableRangeError):
            cut(header, CONTENT)
    else:
        assert cut(header, CONTENT) == CONTENT[first : last + 1]


@given(SIZES)
def test_an_open_range_runs_to_the_end(first):
    if first >= len(CONTENT):
        with pytest.raises(UnsatisfiableRangeError):
            cut(f"bytes={first}-", CONTENT)
    else:
        assert cut(f"bytes={first}-", CONTENT) == CONTENT[first:]


@given(st.integers(1, 300))
def test_a_suffix_is_the_last_bytes(length):
    assert cut(f"bytes=-{length}", CONTENT) == CONTENT[-length:]


def test_the_last_zero_bytes_cannot_be_had():
    with pytest.raises(UnsatisfiableRangeError):
        choose_range("bytes=-0", 10)


def test_nothing_of_an_empty_file_is_a_range():
    assert choose_range("bytes=-5", 0) is None
    with pytest.raises(UnsatisfiableRangeError):
        choose_range("bytes=0-", 0)


@pytest.mark.parametrize(
    "header",
    [None, "", "bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=1", "lines=1-2", "bytes=0-1,4-5", "bytes=1-2-3"],
)
def test_what_may_be_ignored_is_ignored(header):
    assert choose_range(header, 10) is None


def test_spaces_and_case_do_not_matter():
    assert choose_range(" Bytes = 2-3 ", 10) == (2, 4)


@given(st.text(), SIZES)
def test_any_header_gives_a_range_within_the_content_or_a_problem(header, size):
    for text in (header, "bytes=" + header):
        try:
            chosen = choose_range(text, size)
        except UnsatisfiableRangeError:
            continue
        assert chosen is None or 0 <= chosen[0] < chosen[1] <= size


def test_numbers_beyond_63_bits_are_no_range():
    assert choose_range("bytes=0-" + "9" * 5000, 10) is None


def test_entity_tags_tell_contents_apart():
    tags = {
        strong_etag(manifest, *names)
        for manifest in ("aa", "bb")
        for names in (("file", "x"), ("file", "y"), ("tensor", "x", "y"), ("tensor", "xy"))
    }
    assert len(tags) == 8
    assert strong_etag("aa", "file", "x") == strong_etag("aa", "file", "x")


def test_if_none_match_compares_weakly_and_knows_the_star():
    tag = strong_etag("aa", "file", "x")
    assert is_unchanged(tag, tag)
    assert is_unchanged(f'"other", W/{tag}', tag)
    assert is_unchanged("*", tag)
    assert not is_unchanged('"other"', tag)
    assert not is_unchanged(None, tag)


def test_if_match_compares_strongly():
    tag = strong_etag("aa", "file", "x")
    check_match(None, tag)
    check_match("*", tag)
    check_match(f'"other", {tag}', tag)
    with pytest.raises(PreconditionFailedError):
        check_match(f"W/{tag}", tag)


def test_if_range_needs_the_very_tag():
    tag = strong_etag("aa", "file", "x")
    assert range_applies(None, tag)
    assert range_applies(tag, tag)
    assert not range_applies(f"W/{tag}", tag)
    assert not range_applies("Tue, 01 Jan 2030 00:00:00 GMT", tag)
