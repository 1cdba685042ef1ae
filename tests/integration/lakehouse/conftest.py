import re

import pytest

from lakehouse.sessions import session
from lakehouse.table_definitions import LakeNames


@pytest.fixture(scope="module")
def spark(spark_server):
    with session(spark_server["config"], shared=True) as spark:
        yield spark


@pytest.fixture
def names(request):
    """A separate lake."""
    test = re.sub(r"\W+", "_", request.node.name)
    return LakeNames("lake", f"sys_{test}", f"tab_{test}")
