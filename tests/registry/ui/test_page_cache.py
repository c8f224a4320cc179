"""Proves: what was computed is computed once, and forgotten when anything changes in the registry."""

import threading

from registry.ui.page_cache import PageCache


def test_the_same_is_computed_once_and_again_after_a_change() -> None:
    state, made = ["a"], list[int]()
    cache = PageCache(lambda: state[0])

    def make() -> int:
        made.append(len(made))
        return made[-1]

    assert [cache.get("x", make), cache.get("x", make), cache.get("y", make)] == [0, 0, 1]
    state[0] = "b"
    assert [cache.get("x", make), cache.get("x", make)] == [2, 2]


def test_what_changed_while_it_was_computed_is_not_kept() -> None:
    states = iter(["a", "b", "b", "b"])
    cache = PageCache(lambda: next(states))
    assert cache.get("x", lambda: "of a") == "of a"
    assert cache.get("x", lambda: "of b") == "of b"


def test_a_look_at_any_page_forgets() -> None:
    state = ["a"]
    cache = PageCache(lambda: state[0])
    cache.get("x", object)
    assert len(cache._values) == 1
    cache.refresh()
    assert len(cache._values) == 1
    state[0] = "b"
    cache.refresh()
    assert len(cache._values) == 0


def test_those_used_least_recently_go_first() -> None:
    cache = PageCache(lambda: "", size=2)
    for key in ("x", "y", "x", "z"):
        cache.get(key, lambda key=key: key)  # type: ignore[misc]
    assert list(cache._values) == ["x", "z"]


def test_one_computes_at_a_time() -> None:
    cache, running, most = PageCache(lambda: ""), list[int](), list[int]()

    def make() -> int:
        running.append(1)
        most.append(len(running))
        threading.Event().wait(0.02)
        running.pop()
        return 0

    threads = [threading.Thread(target=cache.get, args=(number, make)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 4
