"""Members give signs of life, meet, and are lost; all of one meeting hold the same decision."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import TCPStore

from bagua_bench.elastic.members import Changed, Meeting, Members

QUICK = {"beat": 0.05, "patience": 4.0}


@pytest.fixture
def store() -> Iterator[TCPStore]:
    yield TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def member(store: TCPStore, **given: float) -> Members:
    """One with a connection of its own, as a process has."""
    own = TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)
    return Members(own, **{**QUICK, **given})


def meet(everyone: list[Members], wait_for: int = 1) -> list[Meeting]:
    with ThreadPoolExecutor(len(everyone)) as pool:
        found = list(pool.map(lambda one: one.meet(wait_for=wait_for), everyone))
    return [met for met in found if met is not None]


def tell(everyone: list[Members]) -> None:
    """Wait until each has given a sign of life that began after this call."""
    for one in everyone:
        begun = one._pulse._count
        while one._pulse._count < begun + 3:  # the last one may have only begun, and the first before
            time.sleep(0.01)


def wait_for_the_end(one: Members, seconds: float = 200.0) -> str:
    """What `check` raises."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            one.check()
        except Changed as changed:
            return str(changed)
        time.sleep(0.02)
    raise AssertionError("the company did not end")


def test_all_who_are_there_meet_in_the_order_of_coming(store: TCPStore) -> None:
    everyone = [member(store) for _ in range(3)]
    met = meet(everyone, wait_for=3)
    assert [one.rank for one in met] == [0, 1, 2]
    assert all(one.number == 0 and one.size == 3 and one.before == () for one in met)
    assert len({one.present for one in met}) == 1
    for one in everyone:
        one.check()
        one.close()


def test_a_silent_member_is_lost_and_what_it_told_last_is_known(store: TCPStore) -> None:
    everyone = [member(store) for _ in range(3)]
    meet(everyone, wait_for=3)
    for k, one in enumerate(everyone):
        one.note = {"taken": k}
    tell(everyone)
    everyone[0].close()
    assert f"1 of 3 ranks gave no sign of life for {QUICK['patience']:g} s" in wait_for_the_end(everyone[1])
    left = meet(everyone[1:])
    assert [(one.number, one.rank, one.size) for one in left] == [(1, 0, 2), (1, 1, 2)]
    assert left[0].notes_before == left[1].notes_before == [{"taken": 0}, {"taken": 1}, {"taken": 2}]
    for one in everyone[1:]:
        one.close()


def test_who_comes_later_ends_the_company_and_comes_in_last(store: TCPStore) -> None:
    two = [member(store) for _ in range(2)]
    meet(two, wait_for=2)
    late = member(store)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(late.meet)
        for one in two:
            assert "wait to come in" in wait_for_the_end(one)
        assert [one.rank for one in meet(two)] == [0, 1]
        met = coming.result(200)
    assert met is not None and (met.number, met.rank, met.size) == (1, 2, 3)
    assert len(met.before) == 2
    for one in (*two, late):
        one.check()  # it is another company now
        one.close()


def test_a_member_that_leaves_a_company_ends_it_for_all(store: TCPStore) -> None:
    two = [member(store) for _ in range(2)]
    meet(two, wait_for=2)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(two[0].meet)
        wait_for_the_end(two[1])
        assert two[1].meet() is not None and coming.result(200) is not None
    for one in two:
        one.close()


def test_fewer_than_asked_for_wait(store: TCPStore) -> None:
    one = member(store)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one.meet, 2)
        time.sleep(1.0)
        assert not first.done()
        other = member(store)
        second = pool.submit(other.meet, 2)
        assert first.result(200) is not None and second.result(200) is not None
    one.close()
    other.close()


def test_only_the_first_seconds_are_waited_for_all(store: TCPStore) -> None:
    one = member(store)
    met = one.meet(wait_for=2, seconds=0.5)
    assert met is not None and met.size == 1
    begun = time.monotonic()
    other = member(store)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(other.meet)
        wait_for_the_end(one)
        again = one.meet(wait_for=3, seconds=60.0)
        assert again is not None and again.size == 2 and coming.result(200) is not None
    assert time.monotonic() - begun < 60.0, "only the first meeting waits"
    one.close()
    other.close()


def test_who_comes_after_the_end_is_told_so(store: TCPStore) -> None:
    one = member(store)
    assert one.meet() is not None
    one.finish()
    one.close()
    late = member(store)
    assert late.meet() is None
    late.close()


def test_a_paused_member_that_others_went_on_without_comes_in_again(store: TCPStore) -> None:
    two = [member(store) for _ in range(2)]
    meet(two, wait_for=2)
    store.set("unrelated", "x")
    two[1]._pulse.stop()  # as a stopped process: no signs, no looks
    wait_for_the_end(two[0])
    alone = two[0].meet()
    assert alone is not None and alone.size == 1
    two[1]._pulse._stopped.clear()
    threading.Thread(target=two[1]._pulse._run, daemon=True).start()
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(two[1].meet)
        wait_for_the_end(two[0])
        met = two[0].meet()
        assert met is not None and met.size == 2 and back.result(200) is not None
    for one in two:
        one._pulse._stopped.set()


def test_a_store_that_is_gone_is_said_in_one_line() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    one = member(store)
    assert one.meet() is not None
    del store
    deadline = time.monotonic() + 200
    with pytest.raises(ConnectionError, match=r"^the store of the members is gone: [^\n]+$"):
        while time.monotonic() < deadline:
            one.check()
            time.sleep(0.05)
    one.close()


@pytest.mark.parametrize("seed", range(2))
def test_members_that_come_and_go_at_random_always_hold_the_same(store: TCPStore, seed: int) -> None:
    """Whoever takes part in a company of some number agrees with all others on who is in it."""
    rng = random.Random(seed)
    held: dict[int, set[tuple[str, ...]]] = {}
    sizes: list[int] = []
    lock = threading.Lock()
    coming = [(rng.uniform(0, 3), rng.uniform(0.5, 2)) for _ in range(5)]
    gone: list[int] = []

    def life(start: float, over: Callable[[float], bool]) -> None:
        """Meet again and again until it is over, after so many seconds."""
        time.sleep(start)
        with member(store, patience=1.0) as one:
            begun = time.monotonic()
            while not over(time.monotonic() - begun):
                met = one.meet()
                assert met is not None
                with lock:
                    held.setdefault(met.number, set()).add(tuple(who.name for who in met.present))
                    sizes.append(met.size)
                while not over(time.monotonic() - begun):
                    try:
                        one.check()
                    except Changed:
                        break
                    time.sleep(0.01)

    def passes(start: float, length: float) -> None:
        try:
            life(start, lambda age: age > length)
        finally:
            gone.append(1)

    def is_left_alone(age: float) -> bool:
        with lock:
            return len(gone) == len(coming) and len(sizes) > 0 and sizes[-1] == 1

    with ThreadPoolExecutor(1 + len(coming)) as pool:
        stays = pool.submit(life, 0.0, is_left_alone)
        for done in [stays, *(pool.submit(passes, *span) for span in coming)]:
            done.result(120)
    assert all(len(decisions) == 1 for decisions in held.values())
    assert max(sizes) >= 2 and len(held) >= 2
