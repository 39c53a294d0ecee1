"""The store gives back what it was given, and never changes it."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from db.calibrations import PROFILE
from db.networks import Network, NetworkConstant
from db.schema import IMMUTABLE
from db.store import Store
from oracle.constants import Calibration
from oracle.errors import BadInput, StoreError, UnknownName
from oracle.interchange import calibration_from_json, calibration_to_json
from oracle.stored_array import StoredArray
from profiler.importers.base import Fact, ImportReport, Verdict
from profiler.measurement import Environment, Measurement

HERE = Environment({"device": "Simulated 1"}, {"load": "0.1"})
ALPHA = NetworkConstant("all_reduce.8x1.fp32.alpha_s", "all_reduce", 8, 1, "fp32", "", "", 1e-5, "s", 9e-6, 1.1e-5)
NETWORK = Network("net", "eight devices", "2026-01-02T03:04:05+00:00", {"name": "net", "curves": []}, (ALPHA,))
REPORT = ImportReport("nccl_tests", "ab" * 32, 2, 1, (), (), 0, ("few",), (8,), Verdict.COMPLETE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(str(path)) as store:
        yield store


def test_a_calibration_comes_back_exactly(store: Store, make_calibration: Callable[..., Calibration]) -> None:
    stored = make_calibration()
    store.add_calibration(stored, [])
    assert store.calibration("small") == stored
    assert store.has_calibration("small")


def test_a_calibration_outlives_the_process(path: Path, make_calibration: Callable[..., Calibration]) -> None:
    with Store.open(str(path)) as store:
        store.add_calibration(make_calibration(), [])
    with Store.open(f"sqlite:///{path}", create=False) as store:
        assert store.calibration("small") == make_calibration()


def test_a_calibration_without_constants_or_shapes_can_be_stored(
    store: Store, make_calibration: Callable[..., Calibration]
) -> None:
    empty = make_calibration("empty", fits=(), shapes=(), notes=())
    store.add_calibration(empty, [])
    assert store.calibration("empty") == empty
    assert store.calibrations()[0].worst_held_out_error is None


def test_plain_sql_reads_the_constants(store: Store, path: Path, make_calibration: Callable[..., Calibration]) -> None:
    store.add_calibration(make_calibration(), [])
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT name, value, unit, lo, hi FROM constant").fetchall()
        joined = connection.execute(
            "SELECT name, held_out_error, flop_hi FROM constant "
            "JOIN kernel_fit USING (calibration_id, family, phase, execution)"
        ).fetchall()
        draws = connection.execute("SELECT avg(j.value) / c.value FROM constant c, json_each(c.draws) j").fetchone()
    connection.close()
    assert rows[0] == ("conv2d.forward.launch_s", 8.1e-6, "s", 0.92 * 8.1e-6, 1.08 * 8.1e-6)
    assert len(rows) == len(joined) == 6
    assert joined[0] == ("conv2d.forward.launch_s", 0.07, 3e9)
    assert draws[0] > 0


def test_the_newest_calibration_is_one_that_is_not_of_single_models(
    store: Store, make_calibration: Callable[..., Calibration]
) -> None:
    assert store.newest_calibration() is None
    general = [store.begin_run("measure cpu", "Simulated 1", HERE)]
    of_models = [*general, store.begin_run(PROFILE, "Simulated 1", HERE)]
    store.add_calibration(make_calibration("mine", created_at="2026-01-05T00:00:00+00:00"), of_models)
    assert store.newest_calibration() == "mine"
    store.add_calibration(make_calibration("old", created_at="2026-01-01T00:00:00+00:00"), general)
    store.add_calibration(make_calibration("new", created_at="2026-01-03T00:00:00+00:00"), general)
    store.add_calibration(make_calibration("loaded", created_at="2026-01-02T00:00:00+00:00"), [])
    assert store.newest_calibration() == "new"


def test_a_taken_name_is_refused_and_named(store: Store, make_calibration: Callable[..., Calibration]) -> None:
    store.add_calibration(make_calibration(), [])
    with pytest.raises(BadInput, match="'small' is taken"):
        store.add_calibration(make_calibration(), [])
    store.add_calibration(make_calibration(), [], taken_ok=True)
    with pytest.raises(BadInput, match="'small' is taken"):
        store.add_calibration(make_calibration(common_sd=0.5), [], taken_ok=True)
    assert store.calibration("small") == make_calibration()


def test_an_unknown_calibration_is_named_with_the_closest(
    store: Store, make_calibration: Callable[..., Calibration]
) -> None:
    store.add_calibration(make_calibration("laptop"), [])
    with pytest.raises(UnknownName, match="unknown calibration 'labtop'; did you mean 'laptop'"):
        store.calibration("labtop")
    with pytest.raises(UnknownName, match="unknown calibration 'lap'"):  # no abbreviations
        store.calibration("lap")
    assert not store.has_calibration("lap")


def test_summaries_count_and_score(store: Store, make_calibration: Callable[..., Calibration]) -> None:
    fits = make_calibration().fits
    scored = tuple(replace(fit, held_out_error=error) for fit, error in zip(fits, (0.3, 0.1, 0.05), strict=True))
    store.add_calibration(make_calibration("first", fits=scored), [])
    store.add_calibration(make_calibration("second"), [])
    first, second = store.calibrations()
    # The median of 0.05, 0.1 and 0.3 is 0.1; the fits hold 3 + 2 + 1 constants.
    assert (first.name, first.constants, first.shapes) == ("first", 6, 4)
    assert (first.median_held_out_error, first.worst_held_out_error) == (0.1, 0.3)
    assert second.name == "second"


def test_measurements_come_back_exactly_and_in_order(
    store: Store, make_measurement: Callable[..., Measurement]
) -> None:
    run = store.begin_run("calibrate --quick", "Simulated 1", HERE)
    given = [
        make_measurement(run, micro="conv", device_s=(5e-324, 0.1 + 0.2, 1.7976931348623157e308)),
        make_measurement(run, environment=Environment({"device": "Simulated 1"}, {"load": "9"}), flags=()),
        make_measurement(run),
    ]
    store.add_measurements(given[:2])
    store.add_measurement(given[2])
    # A case is JSON: its tuples come back as lists.
    assert store.measurements(run) == [replace(m, case=json.loads(json.dumps(m.case))) for m in given]


def test_one_environment_is_stored_once(store: Store, path: Path, make_measurement: Callable[..., Measurement]) -> None:
    run = store.begin_run("measure", "Simulated 1", make_measurement().environment)
    store.add_measurements([make_measurement(run) for _ in range(5)])
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM environment").fetchone() == (1,)
    connection.close()


def test_runs_tell_how_far_they_came(store: Store, make_measurement: Callable[..., Measurement]) -> None:
    first = store.begin_run("measure conv", "Simulated 1", HERE)
    store.add_measurement(make_measurement(first))
    store.finish_run(first)
    second = store.begin_run("measure linear", "Simulated 1", HERE)
    runs = {run.id: run for run in store.runs()}
    assert (runs[first].status, runs[first].measurements, runs[first].command) == ("finished", 1, "measure conv")
    assert runs[first].finished_at is not None
    assert (runs[second].status, runs[second].measurements, runs[second].finished_at) == ("running", 0, None)
    with pytest.raises(UnknownName, match="did you mean 'finished'"):
        store.finish_run(second, "finnished")


def test_unknown_runs_are_refused_everywhere(
    store: Store, make_measurement: Callable[..., Measurement], make_calibration: Callable[..., Calibration]
) -> None:
    for ask in (
        lambda: store.measurements("nowhere"),
        lambda: store.finish_run("nowhere"),
        lambda: store.add_measurement(make_measurement("nowhere")),
        lambda: store.add_calibration(make_calibration(), ["nowhere"]),
    ):
        with pytest.raises(UnknownName, match="unknown run 'nowhere'"):
            ask()
    assert store.calibrations() == []


def test_a_calibration_knows_the_runs_behind_it(store: Store, make_calibration: Callable[..., Calibration]) -> None:
    runs = [store.begin_run("measure", "Simulated 1", HERE) for _ in range(3)]
    store.add_calibration(make_calibration(), [*runs[:2], runs[0]])
    assert store.calibration_runs("small") == sorted(runs[:2])


@pytest.mark.parametrize(
    "fields",
    [
        {"device_s": ()},
        {"device_s": (1e-5, 0.0)},
        {"device_s": (1e-5, math.nan)},
        {"device_s": (math.inf,)},
        {"host_s": (-1e-9,)},
        {"inner": 0},
    ],
)
def test_samples_that_no_clock_can_give_are_refused(
    store: Store, make_measurement: Callable[..., Measurement], fields: dict[str, object]
) -> None:
    run = store.begin_run("measure", "Simulated 1", HERE)
    with pytest.raises(BadInput, match="a linear measurement"):
        store.add_measurements([make_measurement(run), make_measurement(run, **fields)])
    assert store.measurements(run) == []


def test_a_case_that_is_not_json_is_refused(store: Store, make_measurement: Callable[..., Measurement]) -> None:
    run = store.begin_run("measure", "Simulated 1", HERE)
    for case in ({"alpha": math.nan}, {"layer": object()}):
        with pytest.raises(StoreError):
            store.add_measurement(make_measurement(run, case=case))
    with pytest.raises(StoreError, match="not Unicode"):
        store.begin_run("measure \udcff", "Simulated 1", HERE)
    assert store.measurements(run) == []


def with_arrays(make_calibration: Callable[..., Calibration]) -> Calibration:
    """A calibration of which one fit has a residual model."""
    first, *others = make_calibration().fits
    table = np.array([[1e-300, -1 / 3], [2.0, 1e300]])
    stored = (
        StoredArray.of("x", table),
        StoredArray.of("y", np.array([0.1, 3e7], dtype=np.float32)),
        StoredArray.of("nodes", np.array([[3, -2]], dtype=np.int16)),
        StoredArray.of("names", np.array(["log2_m", "log2_n"])),
    )
    return make_calibration("modelled", fits=(replace(first, arrays=stored), *others))


def test_residual_models_come_back_to_the_last_digit(
    store: Store, make_calibration: Callable[..., Calibration]
) -> None:
    known = with_arrays(make_calibration)
    store.add_calibration(known, [])
    again = store.calibration("modelled")
    assert again == known
    assert [fit.law for fit in again.fits] == ["roofline", "additive", "additive"]
    assert again.fits[0].arrays[0].read().tolist() == [[1e-300, -1 / 3], [2.0, 1e300]]
    assert again.fits[0].arrays[1].read().tolist() == np.array([0.1, 3e7], dtype=np.float32).tolist()
    assert calibration_from_json(calibration_to_json(again)) == known


def test_immutable_rows_resist_other_tools(
    store: Store,
    path: Path,
    make_calibration: Callable[..., Calibration],
    make_measurement: Callable[..., Measurement],
) -> None:
    run = store.begin_run("measure", "Simulated 1", HERE)
    store.add_measurement(make_measurement(run))
    store.add_calibration(with_arrays(make_calibration), [run])
    store.add_network(NETWORK, [run])
    with store.importing("ab" * 32, "log.txt") as writer:
        writer.add(Fact("topology", "node", {"devices": 8}), "import-abab")
        writer.finish(REPORT)
    connection = sqlite3.connect(path)
    for table in (*IMMUTABLE, "run"):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > 0
        with pytest.raises(sqlite3.IntegrityError, match="immutable: no DELETE"):
            connection.execute(f"DELETE FROM {table}")
    for table in IMMUTABLE:
        column = connection.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchone()[0]
        with pytest.raises(sqlite3.IntegrityError, match="immutable: no UPDATE"):
            connection.execute(f"UPDATE {table} SET {column} = {column}")
    connection.close()


@pytest.mark.parametrize(
    "change",
    [
        "value = -1",
        "value = 0",
        "lo = 2 * value",
        "hi = value / 2",
        "unit = NULL",
        "family = 'another family'",
        "calibration_id = 99",
    ],
)
def test_the_tables_refuse_an_impossible_constant(
    store: Store, path: Path, make_calibration: Callable[..., Calibration], change: str
) -> None:
    store.add_calibration(make_calibration(), [])
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("DROP TRIGGER constant_no_update")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(f"UPDATE constant SET {change} WHERE id = 1")
    connection.close()


def test_rows_that_were_tampered_with_are_said_in_one_line(
    store: Store, path: Path, make_calibration: Callable[..., Calibration]
) -> None:
    store.add_calibration(make_calibration(), [])
    for table, change in (("constant", "draws = '[1.0]'"), ("measured_shape", "layer = '{'")):
        connection = sqlite3.connect(path)
        connection.execute(f"DROP TRIGGER {table}_no_update")
        connection.execute(f"UPDATE {table} SET {change}")
        connection.commit()
        connection.close()
        with pytest.raises(StoreError, match="cannot be read back") as caught:
            store.calibration("small")
        assert "\n" not in str(caught.value)


def test_a_network_comes_back_and_shares_its_name_with_no_calibration(
    store: Store, make_calibration: Callable[..., Calibration]
) -> None:
    store.add_network(NETWORK, [])
    assert store.network("net") == NETWORK
    assert [(summary.name, summary.constants) for summary in store.networks()] == [("net", 1)]
    with pytest.raises(BadInput, match="taken"):
        store.add_network(NETWORK, [])
    with pytest.raises(BadInput, match="taken"):
        store.add_calibration(make_calibration("net"), [])
    with pytest.raises(UnknownName, match="did you mean 'net'"):
        store.network("nett")


def test_an_import_is_stored_whole_and_known_again(store: Store, make_measurement: Callable[..., Measurement]) -> None:
    taken = [make_measurement("import-abab", device_s=(seconds,)) for seconds in (1.0, 2.0)]
    with store.importing(REPORT.sha256, "log.txt") as writer:
        assert writer.known is None
        for item in taken:
            writer.add(item, "import-abab")
        writer.finish(REPORT)
    assert store.measurements("import-abab") == taken
    with store.importing(REPORT.sha256, "copy.txt") as writer:
        assert writer.known is not None
        assert (writer.known.name, writer.known.rows_taken, writer.known.warnings) == ("log.txt", 2, ("few",))
    assert [file.run_id for file in store.imported_files()] == ["import-abab"]


def test_an_import_that_fails_leaves_nothing(store: Store, make_measurement: Callable[..., Measurement]) -> None:
    with pytest.raises(BadInput), store.importing(REPORT.sha256, "log.txt") as writer:  # noqa: PT012 - it fails late
        for _ in range(5_000):  # more than a batch
            writer.add(make_measurement("import-abab"), "import-abab")
        raise BadInput("line 5001 is longer than the limit")
    assert store.runs() == []
    assert store.imported_files() == []


def test_an_import_of_nothing_is_not_remembered(store: Store) -> None:
    with store.importing(REPORT.sha256, "log.txt") as writer:
        writer.finish(REPORT)
    assert store.imported_files() == []
    assert store.runs() == []


def test_a_database_that_is_deleted_while_it_is_open_is_noticed(
    tmp_path: Path, make_calibration: Callable[..., Calibration]
) -> None:
    path = tmp_path / "store.sqlite"
    with Store.open(str(path)) as store:
        path.unlink()
        with pytest.raises(StoreError, match="was deleted while it was open"):
            store.add_calibration(make_calibration(), [])
