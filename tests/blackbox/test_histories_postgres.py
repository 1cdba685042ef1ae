"""As `test_histories`, with two gateway processes over one Postgres; clients send requests to either process."""

from __future__ import annotations

from tests.blackbox.run import found_wrong


def test_random_histories_over_two_processes_end_with_the_right_rows(two_processes):
    assert not found_wrong(two_processes, range(700, 710))


def test_random_histories_over_two_processes_and_websockets_end_with_the_right_rows(two_processes):
    assert not found_wrong(two_processes, range(960, 968), live=True)


def test_random_histories_over_two_processes_of_which_one_is_killed_end_with_the_right_rows(two_processes):
    assert not found_wrong(two_processes, range(720, 725), kills=True, live=True)
