"""Verdicts on the paper's claims: by hand on small numbers, on the paper's own numbers, on
synthetic runs.
"""

import dataclasses
import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from msgspec import structs

from analysis import catalogue
from analysis.claims import CLAIMS, PAPER, Claim
from analysis.exhibits import PROMPT_ROWS
from analysis.inference import estimate_document_variance, find_detectable_mean
from analysis.metrics import METRICS
from analysis.scorecard import COLUMNS, _convert_papers, build_scorecard
from analysis.study import Study
from analysis.verdicts import (
    Comparison,
    Key,
    Measurements,
    Verdict,
    collect_measurements,
    compare,
    convert_printed,
    judge,
)
from benchmark.ledger.records import EvaluationLine, FailedLine, StageLine
from benchmark.ledger.runs import load_runs
from benchmark.settings.names import make_slug
from tests.support import synthetic

EXHIBITS = {name: catalogue.load(name) for name in catalogue.list_exhibits()}
FINAL_AP = ("bert_base", "5", "AP")


def numbers(**rows: list[list[float]]) -> Measurements:
    """AP after each of two stages. Each row is a list with one [first, last] per seed."""
    made = Measurements(["A", "B"], {})
    for row, seeds in rows.items():
        for seed, values in enumerate(seeds):
            for stage, value in enumerate(values):
                made.put("AP", row, stage, seed, value)
    return made


def verdict(claim: Claim, ours: Measurements, others: int = 0) -> Verdict:
    """The verdict on a claim that is judged together with `others` claims that cannot be held."""
    tied = numbers(ER=[[1, 10]] * 9, Naive=[[1, 10]] * 9)
    claims = [(claim, compare(claim, ours), ()), *[(CLAIM, compare(CLAIM, tied), ())] * others]
    return judge(claims)[0]


CLAIM = Claim("t", "ER beats Naive.", ("ER",), ("Naive",))


@pytest.mark.parametrize(
    ("er", "state"),
    [
        ([4, 5, 6, 5], "held"),  # below 10 with every seed
        ([14, 15, 16, 15], "not held"),
        ([9, 12, 10, 8], "not decidable"),
        ([5, 5], "not decidable"),  # two seeds agree too easily
        ([5], "not decidable"),
    ],
)
def test_a_verdict_is_students(er, state):
    """Oracle: scipy's one-sided t tests of the log ratios. The smaller p-value, which is at least
    0.25**seeds (the floor for equal differences), is doubled for two directions.
    """
    ours = numbers(ER=[[1, value] for value in er], Naive=[[1, 10]] * len(er))
    result = verdict(CLAIM, ours)
    assert (result.state, result.seeds) == (state, len(er))
    logs = np.log(np.array(er) / 10)
    if len(er) > 2:
        sides = [
            scipy.stats.ttest_1samp(logs, 0.0, alternative=side).pvalue
            for side in ("less", "greater")
        ]
        assert result.p == pytest.approx(min(1.0, 2 * max(min(sides), 0.25 ** len(er))))
    assert result.weakest.changes == pytest.approx(logs)
    assert [*filter(str.isdigit, result.reason)] == ([str(len(er)), "3"] if len(er) < 3 else [])


def test_a_claim_of_many_comparisons_says_how_many_seeds_can_refute_it():
    """Oracle: by hand: one row against three is three comparisons in two directions, so six tests.
    The p-value of n seeds is at least 1 / 4**n: 6 / 4**3 is above 5%, 6 / 4**4 below, and 2 / 4**3
    would hold the claim. `decidable_from` is for six tests, too.
    """
    claim = Claim("t", "", ("ER",), ("Naive", "EWC", "MAS"))
    er = [[1.0, value] for value in (15.0, 16.0, 14.0, 13.0)]
    others = {name: [[1.0, 10.0]] * 4 for name in ("Naive", "EWC", "MAS")}
    few = verdict(claim, numbers(ER=er[:3], **others))
    assert few.state == "not decidable" and [*filter(str.isdigit, few.reason)] == ["3", "4"]
    assert verdict(claim, numbers(ER=er, **others)).state == "not held"
    near = verdict(claim, numbers(ER=[[1, value] for value in (10.5, 9.6, 10.6, 9.7)], **others))
    spread = float(np.std(np.log([1.05, 0.96, 1.06, 0.97]), ddof=1))
    assert near.reason == "" and near.decidable_from == pytest.approx(
        find_detectable_mean(spread, 4, 6)
    )


def test_one_comparison_that_fails_refutes_a_claim_and_all_must_hold():
    """Oracle: by hand: ER (8) is far better than MAS (80), so EWC (7, 7.8 or 9) decides alone."""
    claim = Claim("t", "", ("ER",), ("EWC", "MAS"))
    other = {"MAS": [[1.0, 80.0]] * 5, "ER": [[1.0, 8.0]] * 5}
    worse, tied, better = (
        verdict(claim, numbers(EWC=[[1, v + 0.1 * s] for s in range(5)], **other))
        for v in (7, 7.8, 9)
    )
    assert [worse.state, tied.state, better.state] == ["not held", "not decidable", "held"]
    assert worse.weakest.other == tied.weakest.other == better.weakest.other == "EWC"
    # one claim of two comparisons in two directions: four tests
    assert worse.p == pytest.approx(4 * max(0.25**5, p_of(worse.weakest.changes)))


def p_of(changes) -> float:
    return float(scipy.stats.ttest_1samp(changes, 0.0, alternative="greater").pvalue)


@pytest.mark.parametrize(
    ("mas", "state"),
    [
        (10.3, "held"),
        (9.7, "held"),
        (10.49, "held"),
        (9.51, "held"),
        (10.51, "not held"),
        (9, "not held"),
    ],
)
def test_sameness_has_a_margin_on_both_sides(mas, state):
    """Oracle: by hand: within 5% of 10 is from 9.5 to 10.5, so 9.51 and 10.49 are the same, and 9
    and 10.51 are not.
    """
    ours = numbers(MAS=[[1, mas]] * 4, Naive=[[1, 10]] * 4)
    assert verdict(Claim("t", "", ("MAS",), ("Naive",), within=0.05), ours).state == state


def test_an_undecided_claim_says_what_could_have_been_decided():
    """Oracle: `find_detectable_mean` for two tests and the standard deviation of the log ratios.
    NaN if the claim is decided.
    """
    er = [9.0, 12.0, 10.0, 8.0, 11.0]
    result = verdict(CLAIM, numbers(ER=[[1, value] for value in er], Naive=[[1, 10]] * 5))
    assert result.decidable_from == pytest.approx(
        find_detectable_mean(float(np.std(np.log(er), ddof=1)), 5, 2)
    )
    clear = verdict(CLAIM, numbers(ER=[[1, 0.1 * value] for value in er], Naive=[[1, 10]] * 5))
    assert clear.state == "held" and math.isnan(clear.decidable_from)


def test_what_is_missing_is_not_decidable_but_can_be_refuted():
    """Oracle: by hand: "lowest of all" is held only if every method of the paper is compared, but
    one lower method refutes it. Infinite or NaN among enough seeds decides nothing.
    """
    lowest = CLAIMS[0]
    assert not compare(CLAIM, numbers(ER=[[1, 2]] * 5)), (
        "a claim without any comparison is not judged"
    )
    assert not compare(CLAIM, numbers(ER=[[1, 2]] * 5, Naive=[[1]] * 5))
    assert not compare(CLAIM, numbers(ER=[[1, 2]], Naive=[[], [1, 2]])), "they share no seed"
    there = {row: [[1, 10.0]] * 5 for row in PAPER if row not in ("ELLE", "PNN")}
    result = verdict(lowest, numbers(ELLE=[[1, 5.0]] * 5, **there))
    assert result.state == "not decidable" and result.reason.endswith(" PNN")
    late = verdict(lowest, numbers(ELLE=[[1, 5.0]] * 5, PNN=[[1]] * 5, **there))
    assert late.state == "not decidable" and late.reason.endswith(" PNN")
    assert verdict(lowest, numbers(ELLE=[[1, 15.0]] * 5, **there)).state == "not held"
    for value, reason in ((math.inf, "a run diverged"), (math.nan, "missing")):
        naive = [[1.0, 10.0]] * 4 + [[1.0, value]]
        undecided = verdict(CLAIM, numbers(ER=[[1, 2]] * 5, Naive=naive))
        assert undecided.state == "not decidable" and reason in undecided.reason


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text)
def test_the_papers_own_numbers_bear_its_claims_out(claim):
    """Oracle: the paper's text, with which its numbers agree. One number on GPT does not: PNN's AP
    after the fourth domain is below ELLE's. The transcribed tables have the numbers of every
    comparison of a claim, unless the paper only draws or tells them.
    """
    assert claim.metric in METRICS
    exhibit = EXHIBITS[claim.table]
    for block in exhibit.suites:
        compared = compare(claim, convert_printed(exhibit.printed, block))
        printed = [comparison for comparison in compared if comparison.changes.size]
        if printed:
            bound = all((comparison.excess > 0).all() for comparison in printed)
            assert bound == (claim is not CLAIMS[0] or block != "gpt_base"), block
        if block == exhibit.suites[0]:
            only_drawn = claim.metric in ("area", "agreement", "ARS", "fall", "attention")
            assert only_drawn or (compared and len(printed) == len(compared))


def test_a_suite_that_extends_a_budgets_is_held_against_that_budgets_numbers() -> None:
    """Oracle: the paper's AP of ELLE after the last domain: 4.42 with half the time, 4.06 with all
    of it.
    """
    bert = SimpleNamespace(line=SimpleNamespace(config={"model": {"architecture": "bert"}}))
    for block, ap in (("half_time", 4.42), ("bert_base", 4.06)):
        study: Any = SimpleNamespace(suite="mine", printed={"mine": block}, runs=[bert])
        papers = _convert_papers(study, catalogue.load)["main_pretraining"]
        assert papers.get(Key("AP", "elle", 4)) == {0: pytest.approx(ap)}


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Study:
    runs = tmp_path_factory.mktemp("runs")
    synthetic.write(runs, "demo", seeds=6)
    return Study("demo", load_runs(runs, "demo"))


def test_numbers_of_runs_are_those_of_their_records(demo):
    """Oracle: by hand, from the records of one run: trapezoids under AP, and the mean over
    fine-tuning seeds. A-GEM's synthetic records have 1 conflict in 2000 gradients.
    """
    results = collect_measurements(demo)
    run = next(run for run in demo.runs if run.row == "ER" and run.seed == 1)
    area, spent, points = 0.0, 0.0, []
    for index, stage in enumerate(run.stages):
        for line in stage:
            if isinstance(line, EvaluationLine) and index:
                seen = [line.perplexity[d.name] or math.nan for d in run.domains[: index + 1]]
                points.append(
                    (
                        spent + line.charged["seconds"],
                        math.exp(sum(map(math.log, seen)) / len(seen)),
                    )
                )
        spent += stage[-1].charged["seconds"]
    for (x, y), (x2, y2) in itertools.pairwise(points):
        area += (x2 - x) * (y + y2) / 2
    assert results.get(Key("area", "er", results.last))[1] == pytest.approx(
        area / (points[-1][0] - points[0][0])
    )
    tests = [line.test for line in run.scores[2] if line.domain == "bio"]
    assert results.get(Key("score", "er", 2, "bio"))[1] == pytest.approx(100 * np.mean(tests))
    assert results.get(Key("agreement", "agem", results.last))[0] == pytest.approx(99.95, abs=0.02)
    assert {"rightprompt", "wrongprompt", "noprompt"} < {
        key.row for key in results.values if key.metric == "score"
    }


def test_an_interval_of_ap_holds_the_choice_of_documents(tmp_path):
    """Oracle: `estimate_document_variance` of the differences of both rows' losses in each of two
    domains, over all seeds' mean. It is 0 without losses by document.
    """
    rng, count = np.random.default_rng(2), 50
    synthetic.write(tmp_path, "demo", seeds=3)
    study = Study("demo", load_runs(tmp_path, "demo"))
    assert study.compute_text_variance("ELLE", "ER", 1) == 0.0
    tokens, losses = rng.integers(20, 90, (2, count)), {}
    for run in study.runs:
        domains = [domain.name for domain in run.domains]
        losses[run.row, run.seed] = nats = tokens * rng.normal(3.0, 0.4, (2, count))
        place = max(
            number for number, line in enumerate(run.stages[1]) if isinstance(line, EvaluationLine)
        )
        documents = {
            name: [*zip(tokens[i].tolist(), nats[i].tolist(), strict=True)]
            for i, name in enumerate(domains[:2])
        }
        run.stages[1][place] = structs.replace(run.stages[1][place], documents=documents)
    changes = np.mean([losses["ELLE", seed] - losses["ER", seed] for seed in range(3)], axis=0)
    pairs = [(changes[i] / 2, tokens[i].astype(float)) for i in range(2)]
    variance = study.compute_text_variance("ELLE", "ER", 1)
    assert variance == pytest.approx(sum(estimate_document_variance(*pair) for pair in pairs))
    [comparison] = compare(
        Claim("t", "", ("ELLE",), ("ER",), stages="each"), collect_measurements(study)
    )[:1]
    assert (comparison.stage, comparison.text_variance) == (1, variance)
    sources = [number // 2 for number in range(count)]  # each source is two documents
    for run in study.runs:
        head = run.stages[1][0]
        assert isinstance(head, StageLine)
        data = {name: {"valid_sources": sources} for name in domains[:2]}
        run.stages[1][0] = structs.replace(head, data=data)
    assert study.compute_text_variance("ELLE", "ER", 1) == pytest.approx(
        sum(estimate_document_variance(nats, sizes, sources) for nats, sizes in pairs)
    )


def test_the_p_of_ap_holds_the_choice_of_documents():
    """Oracle: six seeds agree to 2%, and documents add a standard error of 0.05, so p is the normal
    distribution's at z = 0.05 / 0.05, which is 0.1587, and not the floor 0.25**6.
    """
    changes = np.array([-0.050, -0.051, -0.049, -0.0505, -0.0495, -0.05])
    place: dict[str, Any] = {"row": "ELLE", "other": "ER", "stage": 1, "column": ""}
    place["changes"] = changes
    alone = Comparison(**place, excess=-changes[None])
    with_texts = Comparison(**place, excess=-changes[None], text_variance=0.05**2)
    assert alone.p_values[0] == 0.25**6
    assert with_texts.p_values[0] == pytest.approx(0.1587, abs=0.001)


def test_equal_rows_are_told_apart_by_no_distance():
    """By hand: six seeds without any difference have no spread, so no detectable distance, unless
    the choice of validation documents adds one.
    """
    equal = verdict(CLAIM, numbers(ER=[[1, 10]] * 6, Naive=[[1, 10]] * 6))
    assert equal.state == "not decidable" and "equal" in equal.reason
    assert math.isnan(equal.decidable_from)
    with_texts = dataclasses.replace(equal.weakest, text_variance=0.05**2)
    of_texts = dataclasses.replace(equal, comparisons=(with_texts,))
    assert of_texts.reason == "" and of_texts.decidable_from > 0
    # for one document, `estimate_document_variance` is NaN
    of_one_document = dataclasses.replace(equal.weakest, text_variance=math.nan)
    undecided = dataclasses.replace(of_texts, comparisons=(of_one_document,))
    assert "one validation document" in undecided.reason
    assert math.isnan(undecided.decidable_from)


def test_scorecard_of_synthetic_runs(demo):
    """Oracle: how the records are made: PNN never forgets, 1 in 2000 gradients conflicts; ARS is
    -0.1 for Logit-KD, -0.2 for ELLE, -0.4 for the others, and a fifth of that lower with each
    stage.
    """
    table = build_scorecard(demo, catalogue.load)
    rows = {
        row.label: dict(zip(COLUMNS, row.cells, strict=True))
        for block in table.blocks
        for row in block.rows
    }
    shown = {
        text: {name: cell.text for name, cell in cells.items()} for text, cells in rows.items()
    }
    titles = ["Pre-training", "Downstream", "Similarity of a stream's models"]
    assert [block.title for block in table.blocks] == titles, "no row of the ablation here"
    above = shown["ELLE's AP is below ER's after every domain."]
    assert (above["Verdict"], above["Seeds"]) == ("held", "6")
    assert above["Paper"] == "−18.0%", "the paper: 5.62 against 6.85"
    never = shown["PNN never forgets: its AP⁺ is 0."]
    assert (never["Verdict"], never["Effect"]) == ("held", "+0.00")
    assert (
        shown["More than 99.9% of A-GEM's gradients agree with the memory's."]["Verdict"] == "held"
    )
    for text, effect in {
        "Logit-KD has the highest ARS.": 0.18,
        "ELLE has the second highest ARS.": 0.36,
    }.items():
        assert shown[text]["Verdict"] == "held" and not shown[text]["Paper"]
        assert float(shown[text]["Effect"]) == pytest.approx(effect, rel=0.2)
    falls = shown["ARS decreases with the number of domains."]
    assert falls["Verdict"] == "held" and float(falls["Effect"]) == pytest.approx(
        0.1 * 0.2, abs=0.006
    )
    heads = shown["ELLE's heads attend as their ancestors do, more than as other heads do."]
    assert (heads["Verdict"], heads["Effect"]) == ("held", "+0.30")
    assert any("Order by final AP of the 8 methods" in note for note in table.notes)
    assert any(f"judged against {', '.join(PAPER)}" in note for note in table.notes)


def test_the_order_of_methods_is_that_of_scipy(demo):
    """Oracle: scipy.stats.kendalltau on each seed's final APs and table 1's, and Student's interval
    of their mean.
    """
    ends = demo.ends[demo.ends["stage"] == 4].set_index(["seed", "row"])["ap"]
    printed = {
        v.row: v.value
        for v in EXHIBITS["main_pretraining"].printed
        if (v.block, v.stage, v.metric) == FINAL_AP
    }
    taus = [
        scipy.stats.kendalltau(
            [ends[seed, row] for row in PAPER], [printed[row] for row in PAPER]
        ).statistic
        for seed in range(6)
    ]
    interval = scipy.stats.ttest_1samp(taus, 0.0).confidence_interval(0.95)
    (note,) = (note for note in build_scorecard(demo, catalogue.load).notes if "final AP" in note)
    expected = (
        f"is {np.mean(taus):.2f} (mean over 6 seeds, 95% interval {interval.low:.2f} to "
        f"{interval.high:.2f})"
    )
    assert expected in note


def test_a_run_that_failed_leaves_its_claims_open(demo):
    """Oracle: the rule that a diverged seed is not left out: each claim about ELLE that is held
    while all its runs succeed is not decidable once one has failed. These claims are on AP, AP⁺,
    area, scores, prompts, ARS, its fall and attention.
    """
    run = next(run for run in demo.runs if run.row == "ELLE")
    failed = dataclasses.replace(
        run, failure=FailedLine(stage=4, error="diverged"), stages=[*run.stages[:4], []]
    )
    study = Study("demo", [*(other_run for other_run in demo.runs if other_run is not run), failed])
    results = collect_measurements(study)
    elle = make_slug("ELLE")
    assert results.get(Key("AP", elle, 4, ""))[run.seed] == math.inf
    assert results.get(Key("AP", elle, 3, "")) == collect_measurements(demo).get(
        Key("AP", elle, 3, "")
    )
    about = [
        claim for claim in CLAIMS if {"ELLE", *PROMPT_ROWS.values()} & {*claim.rows, *claim.than}
    ]
    held = [claim for claim in about if state_of(claim, demo) == "held"]
    assert {claim.metric for claim in held} == {
        "AP",
        "AP⁺",
        "area",
        "score",
        "ARS",
        "fall",
        "attention",
    }
    assert any("right prompt" in claim.rows for claim in held)
    assert {state_of(claim, study) for claim in held} == {"not decidable"}


def state_of(claim: Claim, study: Study) -> str:
    """The state of a claim that is judged alone, "" if the study has none of its comparisons."""
    comparisons = compare(claim, collect_measurements(study))
    return judge([(claim, comparisons, ())])[0].state if comparisons else ""
