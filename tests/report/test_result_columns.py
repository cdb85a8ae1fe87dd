"""A value of a result is written once: as JSON, CSV, data frame and table have it."""

from dataclasses import dataclass, field, fields

import pytest

from kvtrace import toy
from kvtrace._base.results import Described, column, columns_in
from kvtrace._base.tables import TextTable
from kvtrace.cache.simulation import Simulation
from kvtrace.report import simulation_tables
from kvtrace.serving import simulate_all
from kvtrace.serving.run import Simulations


class WithMisses(Simulation):
    @property
    @column("miss blocks", ",", rank=2)
    def miss_blocks(self) -> int:
        return self.hits.blocks - self.hits.hit_blocks


@pytest.fixture
def simulations():
    runs = simulate_all(toy("0 1", "2", "0 1"), [2, 3], gap=False).runs
    return Simulations([WithMisses(**{each.name: getattr(run, each.name) for each in fields(run)}) for run in runs], [])


def test_one_property_is_a_key_a_column_of_each_table_and_of_the_frame(simulations):
    rows = [simulation_tables.result(run) for run in simulations.runs]
    assert [row["miss_blocks"] for row in rows] == [4, 3]
    assert simulation_tables.as_csv(rows).partition("\n")[0].endswith(",warm_up_requests,miss_blocks")
    pytest.importorskip("pyarrow")
    assert simulations.to_arrow()["miss_blocks"].to_pylist() == [4, 3]
    values = simulation_tables.to_dict(simulations.runs[0].trace, rows)
    (table,) = simulation_tables.tables(values, simulations.runs)
    assert table.columns[-1].name == "miss blocks" and [row[-1] for row in table.rows] == ["4", "3"]


@dataclass(frozen=True)
class Counted(Described):
    _keys = ("total", "hits")
    _schema = 1

    hits: int = field(metadata=column("hits", lambda hits: f"{hits} of 4", none="-"))
    name: str = ""

    @property
    def total(self) -> int:
        return 4


def test_a_result_with_listed_keys_has_these_alone_after_its_schema():
    assert Counted(3, "a").to_dict() == {"schema": 1, "total": 4, "hits": 3}
    assert list(Counted(3).to_dict()) == ["schema", "total", "hits"]


def test_a_table_shows_the_columns_that_it_names_and_text_as_it_is():
    columns = columns_in(Counted) | {"mark": column(note=True)}
    rows = [Counted(3).to_dict(), {"hits": None, "mark": "*"}, {"hits": "none"}]
    table = TextTable("Hits").add_results(columns, rows, ("mark", "hits"), hits="hit blocks")
    assert [each.name for each in table.columns] == ["", "hit blocks"]
    assert table.rows == [("", "3 of 4"), ("*", "-"), ("", "none")]
