"""`datagen synthesize`: the flags of Dynamo's tool, on a small trace that shares prefixes."""

import json

import numpy as np
import pytest

import kvtrace
from kvtrace import cli
from kvtrace.cli import datagen
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace

METHODS = ("tree", "attach")
ROWS = 240


def run(*arguments):
    return cli.run(["synthesize", *map(str, arguments)], datagen.commands, "datagen")


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A trace in a folder of its own, which is where the command runs: blocks of 512, all prompts share the first.

    Every third prompt is only that; the others add one of four middles, and 1 to 5 blocks of their own.
    """
    monkeypatch.chdir(tmp_path)
    rng, number, rows, lengths = np.random.default_rng(5), {}, [], []
    for row in range(ROWS):
        path = [0] if row % 3 == 0 else [0, 1 + row % 4, *((row, i) for i in range(rng.integers(1, 6)))]
        rows.append([number.setdefault(tuple(path[: depth + 1]), len(number)) for depth in range(len(path))])
        lengths.append(512 * len(path) - (0 if row % 3 == 0 else int(rng.integers(0, 512))))
    columns = Columns(
        np.arange(ROWS) // 2 * 250.0, lengths, rng.integers(1, 900, ROWS), [block for path in rows for block in path],
        np.cumsum([0] + [len(path) for path in rows]),
    )  # fmt: skip
    kvtrace.write(Trace.from_columns(columns, block_size=512), "day.jsonl")
    return "day.jsonl"


def made(source, *arguments, rows=500, output="made.jsonl"):
    """The trace that the command writes; reading it back mends nothing."""
    assert run("--input-file", source, "--num-requests", rows, "--output-file", output, *arguments) == 0
    trace = kvtrace.read(output, block_size=512)
    assert not str(trace.fixes) and trace.is_chained and len(trace) == rows
    return trace


def test_flags_and_defaults_are_those_of_dynamos_tool():
    options = {option.opts[0]: option.default for option in datagen.synthesize_command.params}
    theirs = {
        "--input-file": "mooncake_trace.jsonl", "--num-requests": 100_000, "--speedup-ratio": 1.0,
        "--prefix-len-multiplier": 1.0, "--prompt-len-multiplier": 1.0, "--osl-multiplier": 1.0,
        "--prefix-root-multiplier": 1, "--block-size": 512, "--seed": 0, "--max-rejections": 10_000,
    }  # fmt: skip
    assert options | theirs == options
    for name in ("--min-isl", "--max-isl", "--min-osl", "--max-osl", "--output-file"):
        assert not isinstance(options[name], (int, float, str))


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_gives_the_same_bytes_and_another_seed_others(source, tmp_path, method):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        made(source, "--method", method, "--seed", seed, output=f"{name}.jsonl")
    first, again, other = ((tmp_path / f"{name}.jsonl").read_bytes() for name in "abc")
    assert first == again != other


def test_a_file_is_named_after_input_and_options(source, tmp_path):
    assert run("--input-file", source, "--num-requests", 9, "--seed", 3, "--max-isl", 2048, "--method", "tree") == 0
    assert (tmp_path / "day_synth_9_seed3_tree_max-isl2048.jsonl").read_bytes().count(b"\n") == 9


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_like_those_of_the_source(source, method):
    one, other = kvtrace.read(source), made(source, "--method", method, rows=20_000)
    assert other.input_length.mean() == pytest.approx(one.input_length.mean(), rel=0.05)
    assert other.output_length.mean() == pytest.approx(one.output_length.mean(), rel=0.05)
    rates = [(len(trace) - 2) / trace.timestamp[-1] for trace in (one, other)]
    assert rates[1] == pytest.approx(rates[0], rel=0.05)
    assert (other.input_length % 512 == 0).mean() == pytest.approx((one.input_length % 512 == 0).mean(), abs=0.03)


@pytest.mark.parametrize("method", METHODS)
def test_prefixes_and_prompts_stretch_monotonically(source, method):
    for flag in ("--prefix-len-multiplier", "--prompt-len-multiplier"):
        means = [
            made(source, "--method", method, flag, by).input_length.mean() for by in (0, 0.5, 1, 1.5, 2, 3)
        ]  # fmt: skip
        assert means == sorted(means) and means[2] < means[3] < means[4]


@pytest.mark.parametrize("method", METHODS)
def test_every_root_has_its_share_of_rows(source, method):
    trace = made(source, "--method", method, "--prefix-root-multiplier", 3, rows=3_000)
    _, rows = np.unique(trace.hash_ids[trace.offsets[:-1]], return_counts=True)
    assert np.sort(rows)[-3:].min() > 800  # attach also draws prompts that share nothing, as the source's first one
    assert method == "attach" or len(rows) == 3


@pytest.mark.parametrize("method", METHODS)
def test_input_lengths_keep_their_limits_and_requests_their_rate(source, method):
    free = made(source, "--method", method, rows=5_000)
    for stretch in ((), ("--prompt-len-multiplier", 3)):
        trace = made(source, "--method", method, "--min-isl", 600, "--max-isl", 2000, *stretch, rows=5_000)
        assert trace.input_length.min() >= 600 and trace.input_length.max() <= 2000
        assert trace.timestamp[-1] == pytest.approx(free.timestamp[-1], rel=0.1)


def test_output_lengths_are_multiplied_and_then_clipped(source):
    one, three = (made(source, "--osl-multiplier", by).output_length for by in (1, 3))
    assert np.array_equal(three, 3 * one)
    clipped = made(source, "--osl-multiplier", 3, "--min-osl", 100, "--max-osl", 400).output_length
    assert np.array_equal(clipped, np.clip(3 * one, 100, 400))


def test_a_great_speed_up_leaves_times_apart(source):
    #  250 ms between times: 0.25 ms at a ratio of 1,000, where datagen wrote 0 for all
    plain, fast = (made(source, "--method", "tree", "--speedup-ratio", ratio) for ratio in (1, 1000))
    assert fast.timestamp[-1] == pytest.approx(plain.timestamp[-1] / 1000, abs=0.01)
    assert len(np.unique(fast.timestamp)) == len(np.unique(plain.timestamp)) > 100


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--num-requests", "0"], 2, "'--num-requests': 0"),
        (["--prefix-len-multiplier", "-1"], 2, "--prefix-len-multiplier is -1"),
        (["--prompt-len-multiplier", "-0.5"], 2, "--prompt-len-multiplier is -0.5"),
        (["--osl-multiplier", "nan"], 2, "--osl-multiplier is nan"),
        (["--prefix-root-multiplier", "0"], 2, "--prefix-root-multiplier is 0"),
        (["--prefix-root-multiplier", "1.5"], 2, "'1.5' is not a valid integer"),
        (["--speedup-ratio", "0"], 2, "--speedup-ratio is 0"),
        (["--min-isl", "9", "--max-isl", "8"], 2, "--min-isl must not be above --max-isl"),
        (["--max-isl", "100"], 3, "below the shortest prompt"),
        (["--min-isl", "100000", "--max-rejections", "50", "--method", "tree"], 3, "50 prompts in a row"),
        (["--block-size", "16"], 2, "the sidecar states 512"),
        (["--input-file", "nowhere.jsonl"], 3, "nowhere.jsonl: no such file"),
        (["--seed", "-1"], 2, "'--seed': -1"),
        (["--output-file", "no/folder/made.jsonl"], 2, "does not exist"),
    ],
)
def test_bad_values_end_in_one_clear_line(source, tmp_path, capsys, arguments, status, said):
    before = sorted(tmp_path.iterdir())
    assert run("--input-file", source, "--num-requests", 50, *arguments) == status
    found = capsys.readouterr().err
    assert said in found and found.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_wrong_block_size_is_told_by_the_prompts(source, tmp_path, capsys):
    (tmp_path / "day.jsonl.meta.json").unlink()
    assert run("--input-file", source, "--num-requests", 50, "--block-size", 16) == 3
    assert "Try --block-size" in capsys.readouterr().err


@pytest.mark.parametrize("method", METHODS)
def test_bad_rows_end_in_one_clear_line(tmp_path, monkeypatch, capsys, method):
    monkeypatch.chdir(tmp_path)
    row = {"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [0, 1]}
    unchained = row | {"input_length": 1536, "hash_ids": [1, 0, 1]}
    for rows, said in (
        ([row, row | {"input_length": None}], "bad.jsonl:2: "),
        ([row, {key: row[key] for key in row if key != "hash_ids"}], "bad.jsonl:2: "),
        ([unchained], "--chain"),
        ([], "has no requests"),
    ):
        (tmp_path / "bad.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
        assert run("--input-file", "bad.jsonl", "--num-requests", 5, "--method", method) == 3
        found = capsys.readouterr().err
        assert said in found and found.count("\n") == 1


def test_ids_without_their_prefix_are_rechained_when_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = {"timestamp": 0, "input_length": 1536, "output_length": 1, "hash_ids": [1, 0, 1]}
    (tmp_path / "loose.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    trace = made("loose.jsonl", "--chain", "--method", "tree", rows=20)
    assert trace.hash_ids.tolist() == [0, 1, 2] * 20
