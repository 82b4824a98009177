"""What a fit's report advises: one rule a test."""

from __future__ import annotations

from typing import Any

import pytest

from dps.monitor.advice import Account, advise


def account(rank: int = 0, **parts: Any) -> Account:
    given = {
        "worker": f"tcp://10.0.0.1:{rank}", "rows": 100, "load": 0.0, "compute": 1.0,
        "communicate": 0.0, "wait": 0.0,
    }  # fmt: skip
    return Account(rank, **{**given, **parts})


def advice(*accounts: Account, together: bool = True, **how: Any) -> str:
    said = advise(accounts, together=together, **{"full_batch": False, **how})
    return " ".join(said)


WAITING = [account(rank, compute=0.38, wait=0.62) for rank in range(2)]


def test_waiting_in_sync_asks_for_async_fewer_replicas_or_larger_batches() -> None:
    assert advice(*WAITING) == (
        "62% of the time is waiting: use mode='async', fewer replicas or a larger batch_size."
    )


def test_who_trains_on_all_rows_at_once_is_not_told_of_batches() -> None:
    said = advice(*WAITING, full_batch=True)
    assert "fewer replicas" in said
    assert "batch_size" not in said
    assert "async" not in said


def test_waiting_in_async_is_for_the_end_of_epochs() -> None:
    assert "ends of epochs" in advice(*WAITING, together=False)


def test_a_replica_with_more_rows_is_named_with_the_remedy() -> None:
    others = [account(rank, compute=1.0, wait=3.0) for rank in range(3)]
    said = advice(*others, account(3, compute=4.0, rows=400))
    assert "for replica 3 on 10.0.0.1:3, which has 4.0 times the rows" in said
    assert "set dps.rebalance of dask.config to True" in said


def test_a_slow_machine_is_named_where_rows_are_even() -> None:
    others = [account(rank, compute=1.0, wait=3.0) for rank in range(3)]
    said = advice(*others, account(3, compute=4.0))
    assert "replica 3 on 10.0.0.1:3, which computes 4.00 s where the others take 1.00 s" in said
    assert said.endswith("or use mode=dps.Sync(backups=1) or mode='async'.")


def test_the_slower_one_of_two_is_named_though_its_own_time_is_not_waiting() -> None:
    said = advice(account(0, compute=1.0, wait=2.0), account(1, compute=3.0))
    assert said.startswith("33% of the time is waiting for replica 1 on 10.0.0.1:1")


def test_communication_asks_for_larger_batches_and_for_one_host_where_there_are_several() -> None:
    near = [account(rank, communicate=2.0) for rank in range(2)]
    assert advice(*near) == (
        "67% of the time is moving parameters and gradients: "
        "use a larger batch_size, fewer replicas."
    )
    far = [near[0], account(1, communicate=2.0, worker="tcp://10.0.0.2:1")]
    assert "share memory" in advice(*far)
    assert "mode=dps.AllReduce(period=16)" in advice(*far)


def test_loading_asks_for_data_in_the_form_it_is_trained_on() -> None:
    assert "persist the data" in advice(account(load=2.0))


@pytest.mark.parametrize("together", [False, True])
def test_old_gradients_are_told_of_where_replicas_do_not_wait(together: bool) -> None:
    said = advice(account(0), account(1), together=together, staleness=9.0)
    assert ("Gradients are 9.0 updates old" in said) is not together
    assert ("mode=dps.Async(max_delay=1)" in said) is not together


@pytest.mark.parametrize(("max_delay", "next_one"), [(0, 4), (2, 8)])
def test_waiting_within_a_bound_asks_for_a_wider_one(max_delay: int, next_one: int) -> None:
    said = advice(*WAITING, together=False, max_delay=max_delay)
    assert f"max_delay={next_one}" in said


def test_rows_that_are_dropped_are_told_of_unless_a_replica_is_slow() -> None:
    busy = account(0), account(1)
    assert "dropped" not in advice(*busy, dropped=0.01)
    assert advice(*busy, dropped=0.4).startswith("40% of the rows were dropped")
    assert "dropped" not in advice(*busy, account(2), account(3, rows=25), dropped=0.25)


def test_a_fit_that_computes_needs_workers_and_no_settings() -> None:
    assert advice(account(0, wait=0.1)) == (
        "91% of the time is computing: more workers would make it faster, settings would not."
    )


def test_where_nothing_stands_out_nothing_is_said() -> None:
    assert advice(account(0, communicate=0.3, wait=0.3, load=0.3)) == ""


def test_a_fit_over_at_once_or_never_counted_gets_no_advice() -> None:
    assert advice(account(compute=0.01, wait=0.02)) == ""
    assert advice(account(compute=0.0)) == ""
    assert advice() == ""
