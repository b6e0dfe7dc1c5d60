"""Measured figures compared with the papers'."""

from __future__ import annotations

from dataclasses import replace

from decoding.evaluation.published import COLUMNS, ELSEWHERE, PUBLISHED, TITLE, ahead_table, papers_table
from decoding.evaluation.report import evaluation_tables
from tests.evaluations import make_evaluation


def of_papers(suites: dict[str, str]):
    """The synthetic evaluation with its suites renamed as ``suites`` says."""
    result = make_evaluation()
    result.setting.prompts = {suites.get(name, name): n for name, n in result.setting.prompts.items()}
    for one in result.policies:
        one.rows = {suites.get(name, name): row for name, row in one.rows.items()}
    return result


def test_without_a_data_set_of_the_papers_there_is_no_table():
    assert papers_table(make_evaluation()) is None
    assert TITLE not in [table.title for table in evaluation_tables(make_evaluation())]


def test_each_data_set_has_the_papers_rows_and_ours():
    result = of_papers({"code": "humaneval", "prose": "gsm8k"})
    table = next(one for one in evaluation_tables(result) if one.title == TITLE)
    sources = [(row[0], row[1]) for row in table.rows]
    assert all(sources.count((suite, "here, simulated")) == 1 for suite in ("humaneval", "gsm8k"))
    assert len([one for one in sources if one[0] in ("humaneval", "gsm8k")]) == 5  # two papers, one, and two of ours
    assert {one[0] for one in sources} == {"humaneval", "gsm8k", *ELSEWHERE}
    assert all(len(row) == len(table.columns) for row in table.rows)


def own_figures(result, how: str = "here, simulated") -> dict[str, str]:
    """By policy, the cells of our row."""
    row = next(row for row in papers_table(result).rows if row[1] == how)
    return dict(zip(COLUMNS, row[3:], strict=True))


def test_our_figures_are_the_result_s():
    result = of_papers({"code": "mbpp"})
    own = own_figures(result)
    opt = next(one for one in result.policies if one.label == "static-opt").rows["mbpp"].simulated
    assert own["static-opt"].startswith(f"{opt.speedup.value:.2f}x")
    assert f"{opt.prompts} prompts)" in own["static-opt"]
    assert own["disco"] == ""  # no such policy was evaluated


def test_clocked_figures_have_a_row_of_their_own():
    result = of_papers({"code": "mbpp"})
    assert "here, on the clock" not in [row[1] for row in papers_table(result).rows]
    oracle = next(one for one in result.policies if one.label == "oracle").rows["mbpp"]
    oracle.clock = replace(oracle.simulated, prompts=3)
    assert "(3 prompts)" in own_figures(result, "here, on the clock")["oracle"]
    assert own_figures(result, "here, on the clock")["static-opt"] == "" and own_figures(result)["static-opt"]


def test_how_far_a_policy_is_ahead_of_the_best_static_sl_there_and_here():
    result = of_papers({"code": "mbpp"})
    assert ahead_table(make_evaluation()) is None
    rows = {(row[0], row[1].partition(",")[0]): row[2:] for row in ahead_table(result).rows}
    assert rows["mbpp", "DISCO"] == ["+10.9%", "", "+28.1%"]  # 1 - 1.64 / 1.84, 1 - 1.64 / 2.28
    cut = result.entry("oracle").rows["mbpp"].simulated.cut
    assert rows["mbpp", "here"][-1].startswith(f"{cut.value:+.1%} [{cut.low:+.1%}, {cut.high:+.1%}]")


def test_published_figures_name_their_source():
    assert all("arXiv" in row.source and row.setting and row.speedups for row in PUBLISHED)
