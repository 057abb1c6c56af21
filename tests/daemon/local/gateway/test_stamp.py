"""Marks in answers: added without touching a byte of any other value, however the stream is cut."""

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from patchswarm.daemon.local.gateway.errors import EngineGarbageError
from patchswarm.daemon.local.gateway.stamp import MAX_EVENT_BYTES, Mark, StreamStamper, assemble, members, stamp

MARKS = {"weight_version": "3", "weight_version_start": 3, "weight_version_end": 5}
json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(2**80), 2**80) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=5,
)
objects = st.dictionaries(st.text(), json_values, max_size=5)
layouts = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "  : ")])


def judge(_label):
    return Mark(3, 5)


def stamped(value, separators=(",", ":")):
    return json.loads(stamp(json.dumps(value, separators=separators).encode(), judge))


@given(objects, layouts)
def test_an_openai_answer_is_what_it_was_with_the_marks_at_the_top(answer, separators):
    answer.pop("meta_info", None)
    assert stamped(answer, separators) == {**answer, **MARKS}


@given(objects, objects, layouts)
def test_an_answer_with_meta_info_has_them_there(answer, meta, separators):
    answer["meta_info"] = meta
    assert stamped(answer, separators) == {**answer, "meta_info": {**meta, **MARKS}}


@given(st.lists(objects), layouts)
def test_a_batch_has_them_in_every_answer(answers, separators):
    assert len(stamped(answers, separators)) == len(answers)
    for before, after in zip(answers, stamped(answers, separators), strict=True):
        where = after["meta_info"] if isinstance(before.get("meta_info"), dict) else after
        assert {name: where[name] for name in MARKS} == MARKS


@given(objects, layouts)
def test_values_that_are_cut_out_and_put_back_keep_their_bytes(answer, separators):
    data = json.dumps(answer, separators=separators).encode()
    cut = members(data)
    assert {name: json.loads(bytes(value)) for name, value in cut.items()} == answer
    for value in cut.values():
        assert bytes(value) in data
    assert json.loads(assemble(cut)) == answer


def test_numbers_are_not_read():
    data = b'{"a":1.50e3,"b":-0.0,"c":0.1234567890123456789012345,"d":[1E400,-0],"meta_info":{"e":1.0}}'
    out = stamp(data, judge)
    assert data[:-2] in out


def test_numbers_that_json_does_not_have_pass_all_the_same():
    data = b'{"choices":[{"logprobs":[-Infinity,NaN]}],"x":-Infinity,"meta_info":{"lp":[-Infinity , 1.0e1] }}'
    out = stamp(data, judge)
    assert out.startswith(
        b'{"choices":[{"logprobs":[-Infinity,NaN]}],"x":-Infinity,"meta_info":{"lp":[-Infinity , 1.0e1],'
    )
    assert stamp(b'[{"x":NaN}]', judge).startswith(b'[{"x":NaN,')


@given(st.text(alphabet='{}[]:, "aN\\1'))
def test_near_misses_are_refused_as_pythons_reader_refuses_them(text):
    try:
        expected = json.loads("{" + text)
    except ValueError:
        with pytest.raises(msgspec.DecodeError):
            members(b"{" + text.encode())
    else:
        assert {name: json.loads(bytes(value)) for name, value in members(b"{" + text.encode()).items()} == expected


def test_other_json_passes_as_it_is():
    for data in (b"3", b'"text"', b"null", b" [1, 2] "):
        assert json.loads(stamp(data, judge)) == json.loads(data)


@given(st.binary(max_size=60))
@example(b"{")
@example(b"")
@example(b"[{]")
def test_what_is_no_json_is_the_engines_fault(data):
    try:
        json.loads(data)
    except ValueError:
        with pytest.raises(EngineGarbageError):
            stamp(data, judge)


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ({"meta_info": {"weight_version": "7"}}, "7"),
        ({"metadata": {"weight_version": "7"}}, "7"),
        ({"meta_info": {"weight_version": 7}}, None),
        ({"meta_info": {}}, None),
        ({"metadata": None}, None),
        ({"choices": []}, None),
    ],
)
def test_the_engines_own_label_is_shown_to_the_judge(answer, label):
    seen = []
    stamp(json.dumps(answer).encode(), lambda given: seen.append(given) or Mark(1, 1))
    assert seen == [label]


def chunk(text, reason, ending):
    data = {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}
    return f"data: {json.dumps(data)}{ending}{ending}".encode()


streams = st.tuples(st.lists(st.text(max_size=8), max_size=6), st.sampled_from(["\n", "\r\n"]))


@given(streams, st.lists(st.integers(1, 40), min_size=1))
def test_however_a_stream_is_cut_the_same_comes_out_and_only_its_end_is_marked(stream, cuts):
    texts, ending = stream
    events = [chunk(text, None, ending) for text in texts]
    last, done = chunk("", "stop", ending), f"data: [DONE]{ending}{ending}".encode()
    whole = b"".join([*events, last, done])
    stamper, out, position = StreamStamper(judge), b"", 0
    for size in cuts * len(whole):
        if position >= len(whole):
            break
        out += stamper.feed(whole[position : position + size])
        position += size
    out += stamper.rest()
    assert out.startswith(b"".join(events))
    assert out.endswith(done)
    marked = out[len(b"".join(events)) : -len(done)]
    before, after = (json.loads(each.strip().removeprefix(b"data: ")) for each in (last, marked))
    assert after == {**before, **MARKS}


def test_an_event_that_came_in_whole_is_passed_on_at_once_and_a_part_of_one_is_not():
    stamper = StreamStamper(judge)
    first = chunk("a", None, "\n")
    assert stamper.feed(first + b"data: {") == first
    assert stamper.feed(b"}") == b""
    assert stamper.feed(b"\n\n") == b"data: {}\n\n"


@given(st.text())
def test_text_that_a_model_wrote_is_never_taken_for_an_end(text):
    event = chunk(text + '"finish_reason":"stop","choices":[]', None, "\n")
    assert StreamStamper(judge).feed(event) == event


def test_an_event_without_its_blank_line_is_not_lost():
    stamper = StreamStamper(judge)
    assert stamper.feed(b"data: [DONE]") == b""
    assert stamper.rest() == b"data: [DONE]"
    assert stamper.rest() == b""


def test_comments_names_and_ids_of_events_stay():
    event = b': hello\nevent: message\nid: 4\ndata:{"choices": [ ]}\n\n'
    out = StreamStamper(judge).feed(event)
    assert out.startswith(b': hello\nevent: message\nid: 4\ndata:{"choices":')
    assert out.endswith(b"}\n\n")
    assert json.loads(out.split(b"data:")[1]) == {"choices": [], **MARKS}


def test_an_event_without_end_is_refused_before_memory_is(monkeypatch):
    assert MAX_EVENT_BYTES >= 64 * 1024 * 1024
    monkeypatch.setattr("patchswarm.daemon.local.gateway.stamp.MAX_EVENT_BYTES", 1000)
    stamper = StreamStamper(judge)
    for _ in range(10):
        stamper.feed(b"x" * 100)
    with pytest.raises(EngineGarbageError, match="more than 1000 bytes"):
        stamper.feed(b"x")


def test_a_last_event_that_is_garbage_is_the_engines_fault():
    with pytest.raises(EngineGarbageError):
        StreamStamper(judge).feed(b'data: {"choices":[],\n\n')


def test_members_of_what_is_no_object():
    assert members(b"[1]") is None
    with pytest.raises(msgspec.DecodeError):
        members(b"{")
