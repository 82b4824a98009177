"""Rows of a table: found by id, made once, given up and made again."""

import threading

import numpy as np
import pytest
from compiled import homes
from hypothesis import given, settings, strategies as st

from dps._kernels.table import MAKING, TableRows

FULL, NOT_YET = -2, -3


def table(rows, *, dtype=np.float64, region=None, min_count=1, expire=False, **options):
    width, state_rows = options.pop("width", 3), options.pop("state_rows", 1)
    params = np.full(rows * width + 5, 9.0, dtype)
    state = np.full((state_rows, len(params)), 9.0, dtype)
    made = TableRows(
        params, state, np.zeros(rows, np.int64), np.zeros(rows * (min_count > 1), np.int32),
        np.zeros(rows * expire, np.int64), np.zeros(rows, np.int64), width=width,
        region=region or rows, zeros=1, scale=0.5, seed=3, min_count=min_count,
        start=[0.25] * state_rows,
    )  # fmt: skip
    return made, params, state


ids = st.integers(0, 2**61)


@settings(deadline=None)
@given(st.lists(ids, max_size=30), st.sampled_from([1, 7, 64]), st.integers(40, 70))
def test_each_id_has_one_row_of_its_own_in_the_region_of_its_home(wanted, region, rows):
    made, _, _ = table(rows, region=64 if region == 1 else region)
    region = 64 if region == 1 else region
    wanted = np.array(wanted, np.int64)
    assert (made.find(wanted) == -1).all()
    at = made.make(wanted)
    there = at >= 0  # a region may be full
    distinct = len(np.unique(wanted[there]))
    assert len(np.unique(at[there])) == distinct
    np.testing.assert_array_equal(made.find(wanted[there]), at[there])
    np.testing.assert_array_equal(made.make(wanted[there]), at[there])
    rest = rows % region  # few rows at the end are no homes
    at_home = homes(wanted, rows - rest if rest < min(64, region) else rows)[there]
    np.testing.assert_array_equal(at[there] // region, at_home // region)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_a_new_row_holds_follows_from_its_id_alone(dtype):
    wanted = np.arange(1000, dtype=np.int64) * 7919
    some, params, state = table(2000, dtype=dtype)
    others, shuffled, _ = table(3000, dtype=dtype, region=500)
    here, there = some.make(wanted), others.make(wanted[::-1].copy())[::-1]
    by_row = params[:6000].reshape(-1, 3)
    np.testing.assert_array_equal(by_row[here], shuffled[:9000].reshape(-1, 3)[there])
    drawn = by_row[here][:, 1:]
    assert (by_row[here][:, 0] == 0).all()
    assert np.abs(drawn).max() <= 0.5
    assert abs(drawn.mean()) < 0.02
    assert drawn.std() == pytest.approx(0.5 / 3**0.5, rel=0.03)
    assert (state[:, :6000].reshape(-1, 3)[here] == 0.25).all()
    assert (params[6000:] == 9).all()  # what lies behind the table


def test_a_new_row_has_missed_no_update_and_few_rows_at_the_end_are_no_homes():
    params, state, entries = np.zeros(66), np.zeros((0, 66)), np.zeros(66, np.int64)
    since = np.zeros(66, np.int64)
    made = TableRows(
        params, state, entries, np.zeros(0, np.int32), np.zeros(0, np.int64), since, width=1,
        region=64, zeros=1, scale=0.0, seed=0, min_count=1, start=[],
    )  # fmt: skip
    at = made.make(np.arange(64, dtype=np.int64), 7)
    assert sorted(at) == list(range(64))
    np.testing.assert_array_equal(since, [6] * 64 + [0, 0])


def test_a_full_table_says_so_and_keeps_what_it_has():
    made, _, _ = table(8)
    at = made.make(np.arange(9, dtype=np.int64))
    assert sorted(at) == [FULL, *range(8)]
    np.testing.assert_array_equal(made.make(np.arange(9, dtype=np.int64)), at)


def test_an_id_is_admitted_once_it_has_been_touched_often_enough():
    made, _, _ = table(1000, min_count=3)
    one = np.array([77], np.int64)
    assert [made.make(one)[0] for _ in range(2)] == [NOT_YET] * 2
    made.expire(0, 1000, 0)  # an epoch ends: what has no row is forgotten
    assert [made.make(one)[0] for _ in range(2)] == [NOT_YET] * 2
    assert made.make(one)[0] >= 0
    made.expire(0, 1000, 0)
    assert made.find(one)[0] >= 0


def test_rows_that_nobody_touches_are_given_up_and_made_anew():
    rows = 50
    made, params, state = table(rows, expire=True)
    old, young = np.arange(20, dtype=np.int64), np.arange(20, 40, dtype=np.int64)
    made.make(old, 5)
    kept = made.make(young, 9)
    params[:], state[:] = 1.0, 2.0
    made.expire(0, rows, 6)
    assert (made.find(old) == -1).all()
    np.testing.assert_array_equal(made.find(young), kept)
    at = made.make(old, 10)  # in rows that others may have had
    fresh, drawn, _ = table(rows)
    where = fresh.make(old)
    np.testing.assert_array_equal(
        params[:150].reshape(-1, 3)[at], drawn[:150].reshape(-1, 3)[where]
    )
    assert (state[:, :150].reshape(-1, 3)[at] == 0.25).all()
    for now in range(11, 40):  # rows are used again and again
        made.make(np.arange(now * 40, now * 40 + 30, dtype=np.int64), now)
        made.expire(0, rows, now + 1)
    assert (made.make(np.arange(rows, dtype=np.int64), 40) >= 0).all()


def test_threads_that_make_the_same_ids_at_once_share_their_rows():
    n = 20_000
    made, _, _ = table(2 * n, expire=True)
    wanted = np.random.default_rng(0).integers(0, n, (4, 3 * n))
    found = np.empty_like(wanted)
    start = threading.Barrier(4)

    def work(rank):
        start.wait()
        found[rank] = made.make(wanted[rank], 1)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    distinct, first = np.unique(wanted.ravel(), return_index=True)
    np.testing.assert_array_equal(found.ravel()[first], made.find(distinct))
    np.testing.assert_array_equal(made.find(wanted.ravel()).reshape(4, -1), found)
    assert len(np.unique(found)) == len(distinct)


def test_an_id_whose_maker_died_has_no_row_and_never_two():
    params, state = np.zeros(24), np.zeros((0, 24))
    entries, nothing = np.zeros(8, np.int64), np.zeros(0, np.int64)
    made = TableRows(
        params, state, entries, np.zeros(0, np.int32), nothing, np.zeros(8, np.int64), width=3,
        region=8, zeros=3, scale=0.0, seed=0, min_count=1, start=[],
    )  # fmt: skip
    dead, others = np.array([5]), np.arange(4, dtype=np.int64)
    entries[homes(dead, 8)[0]] = MAKING - 5
    assert (made.make(others) >= 0).all()  # they pass by
    assert made.find(dead)[0] == -1
    assert made.make(dead)[0] == NOT_YET
    assert (entries == 6).sum() == 0


def test_arrays_that_do_not_go_together_are_refused():
    params, state, nothing = np.zeros(10), np.zeros((1, 10)), np.zeros(0, np.int64)
    options = {"width": 3, "region": 4, "zeros": 1, "scale": 1.0, "seed": 0, "min_count": 1}
    counts, since = np.zeros(0, np.int32), np.zeros(4, np.int64)
    with pytest.raises(ValueError, match="do not fit"):
        TableRows(
            params, state, np.zeros(4, np.int64), counts, nothing, since, start=[0.0], **options
        )
    with pytest.raises(ValueError, match="state has length"):
        TableRows(params, state, nothing, counts, nothing, since, start=[], **options)
    made, _, _ = table(8, region=4)
    with pytest.raises(ValueError, match="no regions"):
        made.expire(2, 8, 0)
