from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from stillweb.record.crawl.frontier import CrawlState, Frontier
from stillweb.record.crawl.scope import Scope
from stillweb.record.options import ScopeKind

HOME = "https://site.test/"


@dataclass(frozen=True)
class Seen:
    url: str
    links: tuple[str, ...] = ()


def page(number: int) -> str:
    return f"{HOME}{number}" if number else HOME


def frontier(*, depth: int | None = None, limit: int | None = None) -> Frontier[Seen]:
    return Frontier(Scope.of(ScopeKind.HOST, [HOME]), depth=depth, limit=limit)


def crawl(links: dict[str, tuple[str, ...]], jobs: int, picks: list[int], **bounds: int | None) -> list[str]:
    """Visit with `jobs` at a time, finishing in the order that `picks` says; return the list of pages."""
    queue, listed, running = frontier(**bounds), [], []
    while True:
        while len(running) < jobs and (visit := queue.take()):
            running.append(visit)
        if not running:
            return listed
        visit = running.pop((picks.pop() if picks else 0) % len(running))
        listed += [seen.url for seen in queue.put(visit, Seen(visit.url, links.get(visit.url, ())))]


graphs = st.dictionaries(
    st.integers(0, 12).map(page), st.lists(st.integers(0, 12).map(page), max_size=5).map(tuple)
)


@given(graphs, st.integers(1, 5), st.lists(st.integers(0, 9)), st.one_of(st.none(), st.integers(1, 8)))
def test_any_number_of_jobs_lists_the_same_pages_in_the_same_order(
    links: dict[str, tuple[str, ...]], jobs: int, picks: list[int], limit: int | None
) -> None:
    assert crawl(links, jobs, picks, limit=limit) == crawl(links, 1, [], limit=limit)


def test_linked_files_are_left_and_named_or_queued_in_their_place() -> None:
    links = (page(1), HOME + "a.pdf", page(2), HOME + "b.zip", HOME + "a.pdf", "https://else.test/c.pdf")
    for files in (False, True):
        queue: Frontier[Seen] = Frontier(Scope.of(ScopeKind.HOST, [HOME]), files=files)
        first = queue.take()
        assert first is not None
        queue.put(first, Seen(HOME, links))
        rest = [visit.url for visit in iter(queue.take, None)]
        assert rest == ([*links[:4]] if files else [page(1), page(2)])
        assert list(queue.files_left) == ([] if files else [HOME + "a.pdf", HOME + "b.zip"])


def test_a_file_that_was_requested_is_no_matter_of_files() -> None:
    seed = HOME + "a.pdf"
    queue: Frontier[Seen] = Frontier(Scope.of(ScopeKind.HOST, [seed]))
    visit = queue.take()
    assert visit is not None
    queue.put(visit, Seen(seed, (seed,)))
    assert not queue.files_left


def test_breadth_first_within_depth_and_limit() -> None:
    links = {page(0): (page(1), page(2)), page(1): (page(3),), page(2): (page(4),), page(3): (page(5),)}

    assert crawl(links, 1, []) == [page(n) for n in (0, 1, 2, 3, 4, 5)]
    assert crawl(links, 1, [], depth=1) == [page(n) for n in (0, 1, 2)]
    assert crawl(links, 1, [], limit=4) == [page(n) for n in (0, 1, 2, 3)]


def test_links_out_of_scope_and_known_pages_are_not_queued() -> None:
    queue = frontier()
    visit = queue.take()
    assert visit is not None

    queue.put(visit, Seen(visit.url, ("https://other.test/", page(2), page(2), HOME)))

    following = queue.take()
    assert following is not None
    assert (following.url, following.depth, following.seed) == (page(2), 1, False)
    assert queue.take() is None


def test_a_stopped_crawl_gives_what_it_still_holds() -> None:
    queue = frontier()
    first = queue.take()
    assert first is not None
    queue.put(first, Seen(HOME, (page(1), page(2))))
    one, two = queue.take(), queue.take()
    assert one is not None
    assert two is not None

    assert queue.put(two, Seen(two.url)) == []
    assert queue.rest() == [Seen(page(2))]


@given(graphs, st.integers(1, 6), st.integers(1, 3))
def test_crawls_that_go_on_list_what_one_crawl_lists(
    links: dict[str, tuple[str, ...]], limit: int, jobs: int
) -> None:
    whole = crawl(links, 1, [])
    state, listed = CrawlState(), []
    while len(listed) < len(whole):
        queue: Frontier[Seen] = Frontier(
            Scope.of(ScopeKind.HOST, [HOME]), limit=limit, state=state, recorded=listed
        )
        running = []
        while True:
            while len(running) < jobs and (visit := queue.take()):
                running.append(visit)
            if not running:
                break
            visit = running.pop()
            listed += [seen.url for seen in queue.put(visit, Seen(visit.url, links.get(visit.url, ())))]
        state = queue.state

    assert listed == whole


def test_a_page_that_failed_may_be_queued_again_when_going_on() -> None:
    queue = frontier()
    home = queue.take()
    assert home is not None
    queue.put(home, Seen(HOME))

    failed = Frontier[Seen](Scope.of(ScopeKind.HOST, [HOME]), state=queue.state)
    well = Frontier[Seen](Scope.of(ScopeKind.HOST, [HOME]), state=queue.state, recorded=[HOME])

    again = failed.take()
    assert again is not None
    assert (again.url, again.index) == (HOME, 1)
    assert well.take() is None
