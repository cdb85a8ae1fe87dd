"""Linked windows: what links say, and what joining gives back. The laws hold for logs cut anywhere."""

import json
import os
import stat
from itertools import pairwise

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace._base.output_files import appear_together
from kvtrace.formats.links import links_path, read_links, write_links
from kvtrace.ingest.collector import Collector
from kvtrace.ingest.keys import Key
from kvtrace.ingest.logs import sources
from kvtrace.ingest.pipeline import linked_rows
from kvtrace.ingest.row_counts import RowCounter
from kvtrace.privacy.linking import LinkIndex
from kvtrace.privacy.publishing import publish
from tests.conftest import drawn
from tests.ingest.flat import prepare

BLOCK = 4
KEY = Key(bytes(range(16)))


def row(time, tokens, **more):
    return {"timestamp": time, "prompt_token_ids": tokens, "output_length": 3, **more}


def log_of(folder, rows, name="log.jsonl"):
    path = folder / name
    path.write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in rows))
    return path


def sealed(folder, rows, number, *, key=KEY, check="check", suffix=".jsonl", **options):
    """Seal one window as the recorder does; returns its path and its released trace."""
    log = log_of(folder, rows, f"log-{number}.jsonl")
    options = {"tokenizer": None, "time_unit": "ms", "block_size": BLOCK, **options}
    job = prepare(log, key=key, **options)
    collector, counter = Collector.of(job.recipe), RowCounter(0, None)
    for piece in sources.pieces(job.sources):
        batch = job.encoder(piece)
        counter.add(batch, piece)
        collector.add(batch)

    def open_index(start_ns):
        return LinkIndex(folder / "index", check=check, start_ns=start_ns)

    released, links = linked_rows(collector, job.release, counter.counts, open_index=open_index)
    path, trace = folder / f"window-{number}{suffix}", released.trace()
    with appear_together():
        write_links(links, path)
        publish(trace, path)
    return path, trace


def whole(folder, rows, **options):
    options = {"tokenizer": None, "time_unit": "ms", "block_size": BLOCK, **options}
    return kvtrace.ingest.anonymize(log_of(folder, rows), key=KEY, **options)


def prompts(trace):
    return [trace.hash_ids[a:b].tolist() for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)]


def cut(rows, cuts):
    """The rows in windows that begin at these places; none is empty."""
    places = sorted({0, *(place for place in cuts if 0 < place < len(rows)), len(rows)})
    return [rows[a:b] for a, b in pairwise(places)]


token_rows = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=14),  # tokens
        st.integers(0, 2500),  # ms after the row before it
        st.sampled_from([None, "a", "b", "c"]),  # session
        st.sampled_from([None, "kim", "lee", "max", "noa", "ole"]),  # account
    ),
    min_size=2,
    max_size=24,
)
cuts_of = st.lists(st.integers(1, 23), max_size=4)


def rows_of(drawn):
    rows, time = [], 1_900_000_000_000
    for tokens, after, session, account in drawn:
        time += after
        one = {"session": session, "account": account}
        rows.append(row(time, tokens, **{name: value for name, value in one.items() if value}))
    return rows


# -- laws ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=drawn(60))
@given(token_rows, cuts_of, st.sampled_from([".jsonl", ".parquet"]))
def test_joined_exact_windows_are_the_whole_log(tmp_path_factory, drawn, cuts, suffix):
    folder, rows = tmp_path_factory.mktemp("join"), rows_of(drawn)
    paths = [sealed(folder, part, i, profile="exact", suffix=suffix)[0] for i, part in enumerate(cut(rows, cuts))]
    joined, expected = kvtrace.privacy.join_windows(reversed(paths)), whole(folder, rows, profile="exact")
    assert prompts(joined) == prompts(expected)
    assert joined.input_length.tolist() == expected.input_length.tolist()
    assert joined.output_length.tolist() == expected.output_length.tolist()
    assert np.abs(joined.timestamp - expected.timestamp).max() <= 1
    for name in ("session", "domain", *(["parent"] if suffix == ".parquet" else [])):  # Mooncake's rows have no parent
        ours, theirs = getattr(joined, name), getattr(expected, name)
        ours = np.full(len(joined), -1) if ours is None else ours
        theirs = np.full(len(joined), -1) if theirs is None else theirs
        assert ours.tolist() == theirs.tolist(), name
    if "turn" in expected.extra:
        assert joined.extra["turn"].tolist() == expected.extra["turn"].tolist()


@settings(deadline=None, max_examples=drawn(80))
@given(
    token_rows,
    cuts_of,
    st.sampled_from(["standard", "strict"]),
    st.sampled_from([("session", "account"), ("session",), ("account",), ()]),
    st.sampled_from(["dropped", "unique"]),
)
def test_joined_windows_share_no_more_than_they_did(tmp_path_factory, drawn, cuts, profile, names, tail):
    folder, rows = tmp_path_factory.mktemp("join"), rows_of(drawn)
    hidden = {"session", "account"} - {*names}
    rows = [{name: value for name, value in one.items() if name not in hidden} for one in rows]
    options = {"profile": profile, "tail": tail}
    k = kvtrace.privacy.profile(profile).k
    windows = [sealed(folder, part, i, **options) for i, part in enumerate(cut(rows, cuts))]
    joined, exact = kvtrace.privacy.join_windows([path for path, _ in windows]), whole(folder, rows, profile="exact")
    assert len(joined) == len(exact)
    # windows do not overlap in time, so the rows of the joined trace are those of the windows, in order
    apart = np.concatenate([trace.hash_ids + 10**6 * i for i, (_, trace) in enumerate(windows)])
    assert len(apart) == len(joined.hash_ids)
    of_window = {}
    for before, after in zip(apart.tolist(), joined.hash_ids.tolist(), strict=True):
        of_window.setdefault((before // 10**6, after), set()).add(before)
    if joined.meta["release"]["k_counted"] != "inferred":
        assert all(len(blocks) == 1 for blocks in of_window.values())  # no two blocks of a window became one
    # equal blocks were equal in the log
    digests = {}
    for one, other in zip(prompts(joined), prompts(exact), strict=True):
        for block, before in zip(one, other, strict=False):
            assert digests.setdefault(block, before) == before
    # and k accounts have them, or one, or one session or request that names no account
    if joined.meta["release"]["k_counted"] == "accounts":
        who = {}
        for place, (ids, one) in enumerate(zip(prompts(joined), rows, strict=True)):
            sender = one.get("account"), None if "account" in one else one.get("session", place)
            for block in ids:
                who.setdefault(block, set()).add(sender)
        assert all(len(ones) == 1 or len({name for name, _ in ones if name}) >= k for ones in who.values())
    written = publish(joined, folder / "joined.jsonl")
    assert written.audit.passed
    again = kvtrace.privacy.audit(folder / "joined.jsonl")
    assert again.passed, [finding for finding in again.findings if finding.level == "FAIL"]


# -- cases -----------------------------------------------------------------------------------------------------------

SYSTEM = [9] * 8  # two blocks that all share


def test_a_conversation_goes_on_in_the_next_window(tmp_path):
    """Three accounts share the system prompt; kim's own blocks link kim's requests, and nobody else's."""
    day = [row(1000 * i, [*SYSTEM, i, i, i, i], account=name) for i, name in enumerate(["kim", "lee", "max"])]
    night = [row(90_000, [*SYSTEM, 0, 0, 0, 0, 5, 5, 5, 5], account="kim")]
    night += [row(91_000, [*SYSTEM, 1, 1, 1, 1], account="kim")]
    options = {"profile": "standard"}
    paths = [sealed(tmp_path, part, i, **options)[0] for i, part in enumerate([day, night])]
    joined = kvtrace.privacy.join_windows(paths)
    assert prompts(joined) == [[0, 1, 2], [0, 1, 3], [0, 1, 4], [0, 1, 2, 5], [0, 1, 6]]
    assert joined.timestamp.tolist() == [0, 1000, 2000, 90_000, 91_000]
    # lee's block [1, 1, 1, 1] is kim's, too, in the log: two accounts are too few
    first, second = map(read_links, paths)
    assert (first.window, second.window, first.recording) == (0, 1, second.recording)
    assert [number % 2 for number in first.blocks] == [0, 0, 1, 1, 1]
    assert set(second.blocks) & set(first.blocks) == {*first.blocks[:3]}


def test_copies_and_unique_tails_have_no_links_to_others(tmp_path):
    two = [row(i, [*SYSTEM, 1], account=name) for i, name in enumerate(["kim", "lee"])]
    path, trace = sealed(tmp_path, two, 0, profile="standard")
    assert prompts(trace) == [[0, 1, 2], [3, 4, 5]]  # two accounts: both blocks are split; tails are unique
    links = read_links(path).blocks
    assert (links % 2).tolist() == [1, 1, 1, 1, 1, 1] and links[[2, 5]].tolist() == [-1, -1]
    nobody = [row(i, [*SYSTEM, 1, i, i, i]) for i in range(2)]
    path, trace = sealed(tmp_path, nobody, 1, profile="standard")
    assert (read_links(path).blocks == -1).all()  # the log names neither accounts nor sessions


def test_an_index_goes_on_after_a_restart_and_begins_again_with_another_key(tmp_path):
    rows = [row(i, [*SYSTEM, i, i, i, i], session=f"s{i}") for i in range(3)]
    first = read_links(sealed(tmp_path, rows, 0, profile="exact")[0])
    again = read_links(sealed(tmp_path, rows, 1, profile="exact")[0])
    assert again.recording == first.recording and again.blocks.tolist() == first.blocks.tolist()
    assert again.sessions.tolist() == first.sessions.tolist() and (first.window, again.window) == (0, 1)
    size = os.path.getsize(tmp_path / "index")
    with open(tmp_path / "index", "ab") as file:
        file.write(b"half a frame")  # as a kill leaves it
    third = read_links(sealed(tmp_path, rows, 2, profile="exact")[0])
    assert third.blocks.tolist() == first.blocks.tolist() and third.window == 2
    assert os.path.getsize(tmp_path / "index") > size
    other = sealed(tmp_path, rows, 3, key=Key(bytes(16)), check="other", profile="exact")[0]
    assert read_links(other).recording != first.recording
    with pytest.raises(UsageError, match="windows of different recordings: nothing links them"):
        kvtrace.privacy.join_windows([tmp_path / "window-0.jsonl", other])


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes say who may read a file")
def test_links_and_index_are_for_their_owner_alone(tmp_path):
    path, _ = sealed(tmp_path, [row(0, SYSTEM)], 0, profile="exact")
    for secret in (links_path(path), tmp_path / "index"):
        assert stat.S_IMODE(os.stat(secret).st_mode) == 0o600


def test_a_window_is_nothing_to_the_others_without_its_links(tmp_path):
    paths = [sealed(tmp_path, [row(i, SYSTEM)], i, profile="exact")[0] for i in range(2)]
    assert b"recording" not in paths[0].read_bytes()
    links = read_links(paths[1])
    os.unlink(links_path(paths[1]))
    with pytest.raises(InputError, match=r"window-1.jsonl: the window has no links .* Record with --link-windows"):
        kvtrace.privacy.join_windows(paths)
    write_links(links, paths[1])
    assert prompts(kvtrace.privacy.join_windows(paths)) == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"kvtrace_links": 9}', '{"kvtrace_links": 1, "recording": 5}', '{"kvtrace_links": 1}']
)
def test_a_file_that_is_no_links_is_refused(tmp_path, text):
    path, _ = sealed(tmp_path, [row(0, SYSTEM)], 0, profile="exact")
    (tmp_path / "window-0.jsonl.links").write_text(text)
    with pytest.raises(InputError, match=r"window-0.jsonl.links: not the links of a window"):
        kvtrace.privacy.join_windows([path])


@pytest.mark.parametrize("wrong", [[0, 0], [-2, 1], [0.5, 1], ["a", 1], [2**64, 1], None])
def test_links_must_be_numbers_that_are_not_repeated(tmp_path, wrong):
    path, _ = sealed(tmp_path, [row(0, SYSTEM)], 0, profile="exact")
    values = json.loads((tmp_path / "window-0.jsonl.links").read_text())
    (tmp_path / "window-0.jsonl.links").write_text(json.dumps(values | {"blocks": wrong}))
    with pytest.raises(InputError, match="not the links of a window"):
        kvtrace.privacy.join_windows([path])


def test_windows_that_do_not_belong_together_are_refused(tmp_path):
    one, two = (sealed(tmp_path, [row(i, [i] * (8 + i))], i, profile="exact")[0] for i in range(2))
    with pytest.raises(UsageError, match="are the same window. Name each window once."):
        kvtrace.privacy.join_windows([one, two, one])
    with pytest.raises(UsageError, match="join needs at least one window."):
        kvtrace.privacy.join_windows([])
    os.replace(links_path(one), links_path(two))
    with pytest.raises(InputError, match=r"window-1.jsonl.links: belongs to another window"):
        kvtrace.privacy.join_windows([two])
    other, _ = sealed(tmp_path, [row(9, SYSTEM)], 2, profile="standard")
    third, _ = sealed(tmp_path, [row(9, SYSTEM)], 3, profile="exact")
    with pytest.raises(UsageError, match="have different release profiles. Join windows that agree."):
        kvtrace.privacy.join_windows([other, third])


def test_a_sample_cannot_be_linked(tmp_path):
    rows = [row(i, [i] * 8, session=f"s{i}") for i in range(9)]
    log = log_of(tmp_path, rows)
    job = prepare(log, key=KEY, tokenizer=None, time_unit="ms", block_size=BLOCK, profile="exact")
    collector = Collector.of(job.recipe)
    for piece in sources.pieces(job.sources):
        collector.add(job.encoder(piece))
    from kvtrace.privacy.linking import Unreleased, links_of
    from kvtrace.privacy.releases import release

    ids = collector.identities()
    draft, _ = collector.finish({}, keep_order=False)
    before, sample = Unreleased.of(draft, ids), release(draft.trace(), job.profile, session_share=0.5).trace
    with LinkIndex(tmp_path / "index", check="a", start_ns=0) as index, pytest.raises(UsageError, match="a sample of"):
        links_of(before, sample, index, profile=job.profile)


@pytest.mark.parametrize("outputs", [False, True])
def test_blocks_of_outputs_link_too(tmp_path, outputs):
    """The second window's prompt is the first one's prompt and output."""
    first = row(0, [1] * 6) | {"token_ids": [2] * 6, "output_length": 6}
    second = row(5000, [1] * 6 + [2] * 6 + [3] * 4) | {"token_ids": [4] * 4, "output_length": 4}
    options = {"profile": "exact", "outputs": outputs, "suffix": ".parquet"}
    paths = [sealed(tmp_path, [one], i, **options)[0] for i, one in enumerate([first, second])]
    joined, expected = (
        kvtrace.privacy.join_windows(paths),
        whole(tmp_path, [first, second], profile="exact", outputs=outputs),
    )
    assert prompts(joined) == prompts(expected)
    if outputs:
        assert joined.output_ids.tolist() == expected.output_ids.tolist()


def test_the_index_is_refused_while_another_run_writes_it_or_if_it_is_another_file(tmp_path):
    with LinkIndex(tmp_path / "index", check="a", start_ns=0), pytest.raises(UsageError, match="another run writes"):
        LinkIndex(tmp_path / "index", check="a", start_ns=0)
    (tmp_path / "other").write_text("something else\n")
    os.chmod(tmp_path / "other", 0o600)
    with pytest.raises(InputError, match="not the index of a recording"):
        LinkIndex(tmp_path / "other", check="a", start_ns=0)
    assert (tmp_path / "other").read_text() == "something else\n"
