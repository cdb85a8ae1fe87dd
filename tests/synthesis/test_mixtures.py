"""Mixtures: shares, tenants, their rates and blocks, and the command."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace.cli import run
from kvtrace.privacy import sidecar_forms
from kvtrace.synthesis import Knobs, mix
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.synthesis.clients import clients_of
from kvtrace.synthesis.fidelity import figures_of
from kvtrace.synthesis.sampling import sample, write_sample
from kvtrace.synthesis.tree import fit_tree
from kvtrace.trace.building import toy
from tests.synthesis.session_forests import forest
from tests.synthesis.test_synthesize import METHODS, talks

COLUMNS = ("timestamp", "input_length", "output_length", "hash_ids", "offsets")
NOISE = 5  # standard deviations of a count


@pytest.fixture(scope="module")
def models():
    return [fit(talks()), fit(talks(200, seed=8))]


def synthesize(line):
    return run(["synthesize", *line.split()])


def same_rows(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in COLUMNS)


def hits_of(trace):
    return kvtrace.trace.count_hits(trace, kvtrace.trace.unlimited_hits(trace))


def part(trace, domain):
    rows = trace.take(np.flatnonzero(trace.domain == domain))
    return kvtrace.Trace.from_columns(rows, block_size=trace.block_size)


def is_expected(count, expected):
    return abs(count - expected) <= NOISE * np.sqrt(expected) + 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", ["duration", "rate"])
def test_a_mixture_of_one_model_with_one_tenant_is_a_sample_of_it(method, scale):
    model = METHODS[method](talks())
    alone = sample(model, 700, seed=3, scale=scale)
    assert same_rows(sample(mix([model]), 700, seed=3, scale=scale), alone)
    one = sample(mix([model], tenants=1), 700, seed=3, scale=scale)
    assert same_rows(one, alone) and (one.domain == 0).all() and alone.domain is None


@pytest.mark.parametrize("tenants", [None, 2, 20])
@pytest.mark.parametrize("scale", ["duration", "rate"])
def test_shares_are_kept(models, tenants, scale, tmp_path):
    mixture = mix(models, [7, 3], tenants=tenants)
    write_sample(mixture, 3000, tmp_path / "a.jsonl", seed=1, scale=scale)
    synthetic = json.loads((tmp_path / "a.jsonl.meta.json").read_text())["synthetic"]
    requests = [model["requests"] for model in synthetic["models"]]
    assert sum(requests) == 3000 and is_expected(requests[0], 2100) and is_expected(requests[1], 900)
    assert [model["share"] for model in synthetic["models"]] == [0.7, 0.3] and synthetic["seed"] == 1
    if tenants is not None:
        of = np.array(synthetic["tenant_models"])[kvtrace.read(tmp_path / "a.jsonl").domain]
        assert np.bincount(of).tolist() == requests


@given(
    shares=st.lists(st.floats(0.001, 1000), min_size=1, max_size=5), more=st.integers(0, 30), skew=st.floats(0, 3),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_the_tenants_of_each_model_have_its_share(shares, more, skew, seed):
    model = fit(toy("0 1", "0 1 2"))
    mixture = mix([model] * len(shares), shares, tenants=len(shares) + more, tenant_skew=skew)
    clients = clients_of(mixture, np.random.default_rng(seed))
    drawn = np.bincount([client.model for client in clients], [client.share for client in clients], len(shares))
    assert np.allclose(drawn, mixture.shares) and min(client.share for client in clients) > 0
    assert [client.tenant for client in clients] == list(range(len(shares) + more))


def test_rates_of_tenants_follow_the_law_of_zipf(models):
    for skew in (0.0, 1.0, 2.0):
        count = np.bincount(sample(mix(models[:1], tenants=10, tenant_skew=skew), 4000, seed=2).domain, minlength=10)
        rate = np.arange(1, 11.0) ** -skew
        expected = 4000 * rate / rate.sum()
        assert all(is_expected(a, b) for a, b in zip(sorted(count), sorted(expected), strict=True))


@pytest.mark.parametrize("scale", ["duration", "rate"])
def test_tenants_share_no_block(models, scale):
    trace = sample(mix(models, tenants=7), 2000, seed=4, scale=scale)
    domain = np.repeat(trace.domain, np.diff(trace.offsets))
    first = np.full(trace.distinct, -1)
    first[trace.hash_ids] = domain
    assert (first[trace.hash_ids] == domain).all() and len(np.unique(trace.domain)) == 7
    assert kvtrace.trace.in_domains(trace).distinct == trace.distinct


def test_hits_of_a_mixture_are_those_of_its_tenants(models):
    trace = sample(mix(models, [0.6, 0.4], tenants=5), 2000, seed=5)
    parts = [hits_of(part(trace, domain)) for domain in range(5)]
    whole = hits_of(trace)
    assert whole.hit_blocks == sum(one.hit_blocks for one in parts)
    assert whole.hit_tokens == sum(one.hit_tokens for one in parts)


def test_a_part_of_a_mixture_hits_as_a_sample_of_its_model_with_as_many_requests(models):
    def rates(seeds):
        for seed in seeds:
            trace = sample(mix(models, [0.5, 0.5], tenants=2), 1200, seed=seed)
            tenant = int(np.argmax([hits_of(part(trace, domain)).block_hit_rate for domain in (0, 1)]))
            own = part(trace, tenant)
            alone = max(hits_of(sample(model, len(own), seed=seed)).block_hit_rate for model in models)
            yield hits_of(own).block_hit_rate - alone

    assert abs(np.mean(list(rates(range(5))))) < 0.02


def test_the_rate_of_a_mixture_is_the_mean_of_the_rates_of_its_models(models):
    faster = fit(kvtrace.Trace.from_columns(sample(models[0], 300, knobs=Knobs(speedup_ratio=4)), block_size=16))
    for tenants in (None, 2, 12):
        trace = sample(mix([models[0], faster], [3, 1], tenants=tenants), 4000, seed=1)
        expected = 0.75 * mix([models[0]]).rate + 0.25 * mix([faster]).rate
        assert 4000 / trace.timestamp[-1] == pytest.approx(expected, rel=0.05)


def test_scale_rate_multiplies_the_rate_and_keeps_the_duration(models):
    mixture = mix(models, tenants=4)
    once, more = (sample(mixture, times * mixture.rows, seed=1, scale="rate") for times in (1, 4))
    assert more.timestamp[-1] == pytest.approx(once.timestamp[-1], rel=0.1)


def test_tenants_keep_the_drift_of_their_model():
    trace = talks(2000, seed=5)
    half = trace.timestamp[1000]
    trace.timestamp = np.where(trace.timestamp < half, trace.timestamp, half + (trace.timestamp - half) / 5)
    model = fit(kvtrace.Trace.from_columns(trace, block_size=16))
    for tenants in (1, 3, 40):
        found = sample(mix([model], tenants=tenants), 2000, seed=1).timestamp
        assert np.count_nonzero(found < half) == pytest.approx(1000, abs=120)
        assert found[-1] == pytest.approx(model.duration_ms, rel=0.05)


def lru_and_dispersion(trace, working_set):
    figures = figures_of(trace, working_set)
    return figures["lru_10"], figures["lru_50"], figures["dispersion_60s"]


@pytest.mark.parametrize("more", [{"tenants": 10}, {"shares": [1, 2]}])
def test_clients_together_have_the_hits_and_the_bursts_of_their_model(more):
    """Reuse times stay, so a shared cache hits as before, though each client has a part of the blocks."""
    trace = talks(4000)
    model = fit(trace)
    mixture = mix([model] * len(more.get("shares", [1])), **more)
    found = lru_and_dispersion(sample(mixture, 4000, seed=1), trace.distinct)
    wanted = lru_and_dispersion(trace, trace.distinct)
    assert found[:2] == pytest.approx(wanted[:2], abs=0.03) and found[2] == pytest.approx(wanted[2], rel=0.2)


def test_tenant_cv_sets_the_bursts_of_each_tenant(models):
    for cv in (0.2, 1.0, 3.0):
        trace = sample(mix(models[:1], tenants=3, tenant_skew=0, tenant_cv=cv), 12_000, seed=1)
        assert 12_000 / trace.timestamp[-1] == pytest.approx(mix(models[:1]).rate, rel=0.1)
        for tenant in range(3):
            gaps = np.diff(trace.timestamp[trace.domain == tenant])
            assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.25)  # the drift of the model adds a little
    with pytest.raises(UsageError, match="--tenant-cv"):
        mix(models, tenant_cv=1.0)


def test_small_tenants_see_all_windows_of_their_model():
    short = talks(1000, seed=1)
    long = sample(fit(short), 1000, knobs=Knobs(prompt_len_multiplier=20))
    trace = kvtrace.trace.concat([short, long], gap_ms=1000)
    found = sample(mix([fit(trace)], tenants=30), 2000, seed=1)
    late = found.timestamp > found.timestamp[-1] / 2
    assert found.input_length[late].mean() > 3 * found.input_length[~late].mean()


def test_a_seed_gives_the_same_bytes_whatever_the_workers(models, tmp_path):
    rates = kvtrace.synthesis.RateProfile([0, 600], [0.5, 2.0], period_s=1200)
    for scale in ("duration", "rate"):
        for knobs in (Knobs(), Knobs(rates=rates), Knobs(step_rates="2@60s,5"), Knobs(prefix_len_multiplier=2)):
            written = set()
            for workers in (1, 2, 5):
                write_sample(
                    mix(models, tenants=6), 900, tmp_path / "a.jsonl", seed=5, scale=scale, workers=workers, knobs=knobs
                )
                written.add((tmp_path / "a.jsonl").read_bytes() + (tmp_path / "a.jsonl.meta.json").read_bytes())
            assert len(written) == 1
            found = kvtrace.read(tmp_path / "a.jsonl")
            assert same_rows(found, sample(mix(models, tenants=6), 900, seed=5, scale=scale, knobs=knobs))


def test_methods_tails_and_types_can_differ(models):
    typed = talks(100, seed=4)
    typed.extra["type"] = np.array(["chat", "code"], dtype=object)[np.arange(100) % 2]
    unique = kvtrace.Trace(**kvtrace.trace.columns.fields_of(talks(100)), block_size=16, tail="unique")
    trace = sample(mix([fit_tree(talks()), fit(typed), fit(unique)]), 900, seed=1)
    assert set(trace.extra["type"]) == {"chat", "code", None} and trace.tail == "kept" and trace.is_chained


def test_sessions_stay_with_their_tenant(models):
    trace = sample(mix(models, tenants=5), 1500, seed=3)
    later = np.flatnonzero(trace.parent >= 0)
    assert len(later) and (trace.domain[trace.parent[later]] == trace.domain[later]).all()
    assert (trace.session[trace.parent[later]] == trace.session[later]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "at least one model"),
        (([1.0],), "2 models have 1 shares"),
        (([1.0, 0.0],), "the share is 0; it must be above 0"),
        (([1.0, -1.0],), "above 0"),
        (([1.0, float("nan")],), "above 0"),
        (([1.0, float("inf")],), "above 0"),
    ],
)
def test_wrong_shares_are_refused(models, arguments, message):
    with pytest.raises(UsageError, match=message):
        mix(models if arguments else [], *arguments)


@pytest.mark.parametrize(
    "more", [{"tenants": 1}, {"tenants": 10**6}, {"tenants": 4, "tenant_skew": -1.0}, {"tenants": 4, "tenant_cv": 0.0}]
)
def test_wrong_tenants_are_refused(models, more):
    with pytest.raises(UsageError, match="--tenant"):
        mix(models, **more)


def test_models_that_do_not_fit_together_are_refused(models):
    with pytest.raises(UsageError, match="different block sizes or tails"):
        mix([models[0], fit(talks(block_size=64))])
    with pytest.raises(UsageError, match="session models cannot be mixed"):
        mix([models[0], kvtrace.synthesis.fit_sessions(forest(3))])
    with pytest.raises(InputError, match="model 2: all requests arrive together"):
        sample(mix([models[0], fit(toy("0", "1", block_size=16, gap_ms=0))]), 10)


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models[0].save("a.json")
    kvtrace.write(talks(200, seed=8), "b.jsonl")
    return tmp_path


def test_the_command_mixes_models_and_traces_by_share(folder, models):
    assert synthesize("a.json:0.7 b.jsonl:0.3 --tenants 20 -n 1000 -o m.jsonl --seed 7 -q") == 0
    fitted = kvtrace.synthesis.model_of("b.jsonl")
    assert same_rows(kvtrace.read("m.jsonl"), sample(mix([models[0], fitted], [7, 3], tenants=20), 1000, seed=7))
    synthetic = json.loads((folder / "m.jsonl.meta.json").read_text())["synthetic"]
    assert [model["name"] for model in synthetic["models"]] == ["a.json", "b.jsonl"] and synthetic["tenants"] == 20


def test_a_published_sidecar_states_the_mixture_without_names_of_files(folder):
    (folder / "day.csv").write_text("time,rate\n08:00,2\n20:00,1\n")
    line = "a.json:0.7 b.jsonl:0.3 --tenants 4 --tenant-cv 2 --rates day.csv -n 90 -o m.jsonl"
    assert synthesize(line) == 0
    private = json.loads((folder / "m.jsonl.meta.json").read_text())["synthetic"]
    public = sidecar_forms.public({"synthetic": private})["synthetic"]
    assert all("name" not in model for model in public["models"])
    assert public == private | {"models": [{**model} for model in public["models"]]}
    assert [set(model) | {"name"} for model in public["models"]] == [set(model) for model in private["models"]]


def test_a_multiple_counts_the_requests_of_all_models(folder):
    assert synthesize("a.json b.jsonl -n 2x -o m.jsonl -q") == 0
    assert len(kvtrace.read("m.jsonl")) == 1000


def test_a_file_whose_name_has_a_colon_is_a_file(folder):
    (folder / "a.json").rename("day:2")
    assert synthesize("day:2 -n 50 -o m.jsonl -q") == 0
    assert synthesize("day:2:0.5 b.jsonl -n 50 -o m.jsonl -q") == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("a.json:0 b.jsonl", "a.json:0: the share must be above 0"),
        ("a.json:nan b.jsonl", "the share must be above 0"),
        ("a.json:-1 b.jsonl", "the share must be above 0"),
        ("a.json b.jsonl --check", "--check and --save-model need one TRACE"),
        ("a.json b.jsonl --save-model c.json", "--check and --save-model need one TRACE"),
        ("- -", "stdin (-) can be read once"),
        ("a.json --tenant-cv 2", "--tenant-cv needs --tenants"),
        ("a.json --tenant-skew 2", "--tenant-skew needs --tenants"),
        ("a.json b.jsonl --tenants 1", "--tenants is 1; it must be from 2"),
        ("a.json --tenants 0", "--tenants is 0"),
        ("a.json --rates-period 1h", "--rates-period needs --rates"),
        ("a.json b.jsonl --sessions 4", "--sessions needs"),
    ],
)
def test_wrong_commands_are_refused_with_one_line(folder, capsys, command, message):
    assert synthesize(f"{command} -o m.jsonl") == 2
    error = capsys.readouterr().err
    assert message in error and not (folder / "m.jsonl").exists()


def test_an_output_is_no_input_with_a_share(folder, capsys):
    assert synthesize("a.json:0.5 b.jsonl:0.5 -n 50 -o b.jsonl") == 2
    assert "b.jsonl is the same file as TRACE b.jsonl" in capsys.readouterr().err
