"""The one line that says how long a compilation took."""

from fusec.report import Stage, compile_line, seconds_by_stage


def test_stages_of_one_name_are_added_up_in_order():
    stages = [Stage("lower", 0.25, ""), Stage("build", 1.0, ""), Stage("lower", 0.5, "")]
    assert list(seconds_by_stage(stages).items()) == [("lower", 0.75), ("build", 1.0)]
    assert compile_line(seconds_by_stage(stages)) == "compiled in 1.75 s: lower 0.75, build 1.00"


def test_short_compilations_have_more_places():
    assert compile_line({"lower": 0.004, "build": 0.02}) == (
        "compiled in 0.024 s: lower 0.004, build 0.020"
    )


def test_nothing_was_compiled():
    assert compile_line({}) == ""
