"""`make quick` runs the tests of what was changed, and tests/slow.txt names tests that exist."""

import re

from tests.conftest import SLOW
from tests.docs import ROOT
from tests.house.rooms import ROOMS
from tests.quick import arguments, importers, main


def test_a_changed_room_is_tested_whole_and_one_case_of_each_test_of_those_that_import_it():
    chosen = arguments(["src/kvtrace/serving/core/fleet.py", "README.md", "src/kvtrace/__init__.py"])
    assert {"tests/serving", "tests/report", "tests/cli"} <= {*chosen}
    assert {"--one-case=tests/report", "--one-case=tests/cli"} <= {*chosen}
    assert "--one-case=tests/serving" not in chosen and "tests/trace" not in chosen
    assert "tests/house/test_docs.py::test_docstring_examples_run[serving]" in chosen


def test_the_commands_import_every_room_but_the_kernels():
    assert [room for room in ROOMS if room not in ("_native", "cli") and "cli" not in importers({room})] == []


def test_a_changed_test_runs_with_its_folder_and_a_changed_twin_runs_the_tests_that_name_it():
    assert "tests/text" in arguments(["tests/text/test_trial.py"])
    assert "tests/native/test_rank_sums.py" in arguments(["tests/reference/rank_sums.py"])
    assert "tests/attacks" in arguments(["fuzz/files.py"])


def test_every_room_has_a_folder_of_tests():
    paths = arguments([f"src/kvtrace/{room}/x.py" for room in ROOMS])
    assert [path for path in paths if not (ROOT / path.partition("::")[0]).exists()] == []


def test_an_unknown_room_is_one_line(capsys):
    assert main(["attic"]) == 2
    assert capsys.readouterr().err.startswith("attic: not a room. Rooms: _base, _native, trace, ")


def test_the_list_of_slow_tests_names_tests_that_exist():
    for line in SLOW:
        path, _, test = line.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *def {test.rpartition('::')[2]}", text, re.M), line
