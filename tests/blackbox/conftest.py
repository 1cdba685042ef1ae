import pytest

from tests.blackbox.server import Server


@pytest.fixture(scope="module")
def over_sqlite():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def over_shards():
    server = Server("sharded")
    yield server
    server.close()


@pytest.fixture(scope="module")
def two_processes(module_database):
    server = Server("postgres", module_database, 2)
    yield server
    server.close()
