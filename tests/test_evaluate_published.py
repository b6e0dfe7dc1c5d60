"""Measured figures compared with the papers'."""

from decoding.evaluation.published import AHEAD_TITLE, COLUMNS, ELSEWHERE, PUBLISHED, TITLE, papers_tables
from decoding.evaluation.report import tables_of, to_csv
from tests.evaluations import changed, make_evaluation, renamed


def of_papers(suites: dict[str, str]):
    """The synthetic evaluation with its suites renamed as ``suites`` says."""
    return renamed(make_evaluation(), suites)


def test_without_a_data_set_of_the_papers_there_is_no_table():
    assert papers_tables(make_evaluation()) == []
    assert TITLE not in [table.title for table in tables_of(make_evaluation())]


def rows_of(result, title: str = TITLE) -> list[list[str]]:
    table = next(one for one in tables_of(result) if one.title == title)
    assert all(len(row) == len(table.columns) for row in table.rows)
    return [[cell.text for cell in row] for row in table.rows]


def test_each_data_set_has_the_papers_rows_and_ours():
    sources = [
        (row[0], row[1].rpartition(", ")[0] or row[1])
        for row in rows_of(of_papers({"code": "humaneval", "prose": "gsm8k"}))
    ]
    assert all(sources.count((suite, "here, simulated")) == 1 for suite in ("humaneval", "gsm8k"))
    assert len([one for one in sources if one[0] in ("humaneval", "gsm8k")]) == 5  # two papers, one, and two of ours
    assert {one[0] for one in sources} == {"humaneval", "gsm8k", *ELSEWHERE}


def own_figures(result, how: str = "here, simulated") -> dict[str, str]:
    """By policy, the cells of our row; and its "source"."""
    row = next(row for row in rows_of(result) if row[1].startswith(how))
    return {"source": row[1], **dict(zip(COLUMNS, row[3:], strict=True))}


def test_our_figures_are_the_result_s():
    result = of_papers({"code": "mbpp"})
    own = own_figures(result)
    opt = result.find("speedup", "static-opt", "mbpp")
    assert own["static-opt"].startswith(f"{opt.value:.2f}× [{opt.low:.2f}, ")
    assert own["source"] == f"here, simulated, {opt.n} prompts"
    assert own["disco"] == ""  # no such policy was evaluated


def test_the_column_of_sl_5_shows_no_other_static_sl():
    result = of_papers({"code": "mbpp"})
    five = own_figures(result)["static:5"]
    three = [one._replace(policy="static:3", value=9.0) for one in result.figures if one.policy == "static:5"]
    result.figures += three
    result.lanes = {"static:3": "static:3", **result.lanes}
    assert own_figures(result)["static:5"] == five
    del result.lanes["static:5"]
    assert own_figures(result)["static:5"] == ""


def test_clocked_figures_have_a_row_of_their_own():
    result = of_papers({"code": "mbpp"})
    assert not any(row[1].startswith("here, on the clock") for row in rows_of(result))
    oracle = result.find("speedup", "oracle", "mbpp")
    timed = changed(result, oracle._replace(metric="clock_speedup", n=3))
    assert own_figures(timed, "here, on the clock")["source"] == "here, on the clock, 3 prompts"
    assert own_figures(timed, "here, on the clock")["static-opt"] == "" and own_figures(timed)["static-opt"]


def test_how_far_a_policy_is_ahead_of_the_best_static_sl_there_and_here():
    result = of_papers({"code": "mbpp"})
    rows = {(row[0], row[1].partition(",")[0]): row[2:] for row in rows_of(result, AHEAD_TITLE)}
    assert rows["mbpp", "DISCO"] == ["+10.9%", "", "+28.1%"]  # 1 - 1.64 / 1.84, 1 - 1.64 / 2.28
    cut = result.find("cut", "oracle", "mbpp")
    assert rows["mbpp", "here"][-1].startswith(f"{cut.value:+.1%} [{cut.low:+.1%}, {cut.high:+.1%}]")


def test_the_papers_figures_are_in_the_long_table_too():
    lines = to_csv([of_papers({"code": "mbpp"})]).splitlines()
    assert any("DISCO" in line and ",disco,mbpp," in line and ",1.84," in line for line in lines)


def test_published_figures_name_their_source():
    assert all("arXiv" in row.source and row.setting and row.speedups for row in PUBLISHED)
