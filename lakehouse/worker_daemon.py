"""`spark.python.daemon.module`: the process that Spark forks its Python workers from, with the tasks' imports done.

Spark ends a worker that has waited for a minute. A new one would import for seconds before its first row.
"""

import gc
import sys

import pandas as pd  # noqa: F401  pyarrow imports it when it first takes an array of numpy
import pyiceberg_core.transform  # noqa: F401
from pyspark.daemon import manager

import lakehouse.history.log_reading
import lakehouse.tables.merge_job  # noqa: F401


def leave_out_jars() -> None:
    """Take Spark's jar from the path on which Python looks for modules.

    It holds no module, and a worker reads the directory of every archive there before each task: 50 to 80 ms of the
    processor, of an empty task nearly all.
    """
    sys.path[:] = [each for each in sys.path if not each.endswith(".jar")]
    for each in [each for each in sys.path_importer_cache if ".jar" in each]:  # also its folders, as packages
        del sys.path_importer_cache[each]


if __name__ == "__main__":
    leave_out_jars()
    gc.freeze()  # the collector leaves these objects alone, so that workers go on sharing their pages
    manager()  # type: ignore[no-untyped-call]
