"""Operations of several steps, which yield the future of each step."""

import gc
import weakref
from concurrent.futures import CancelledError, Future

import pytest

from lakesync.engine.futures import run


class Page:
    """A result that can be observed."""


def read_and_return(*futures):
    """Wait for the futures one after another; return the last result."""
    result = None
    for future in futures:
        result = yield future
    return result


@pytest.fixture
def no_collection():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("completed_before", [True, False])
def test_no_result_stays_in_memory_until_a_garbage_collection(completed_before):
    first, second = Future(), Future()
    pages = [Page(), Page()]
    observed = [weakref.ref(page) for page in pages]
    if completed_before:
        first.set_result(pages[0])
        second.set_result(pages[1])
    outcome = run(read_and_return(first, second))
    if not completed_before:
        first.set_result(pages[0])
        second.set_result(pages[1])
    assert outcome.result(0) is pages[1]
    del first, second, outcome, pages
    assert [page() for page in observed] == [None, None]


def test_a_cancelled_operation_cancels_its_pending_step():
    step = Future()
    seen = []

    def operation():
        try:
            yield step
        except CancelledError as error:
            seen.append(error)
            raise

    outcome = run(operation())
    assert outcome.cancel()
    assert step.cancelled()
    assert len(seen) == 1
    with pytest.raises(CancelledError):
        outcome.result(0)


def test_the_error_of_a_step_is_raised_in_the_operation():
    step = Future()

    def operation():
        try:
            yield step
        except ValueError as error:
            return f"seen: {error}"

    outcome = run(operation())
    step.set_exception(ValueError("no"))
    assert outcome.result(0) == "seen: no"
