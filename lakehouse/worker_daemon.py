"""The process from which Spark forks its Python workers, after it has imported what tasks need.

`lakesync up` configures Spark to start it (setting `spark.python.daemon.module`). Spark ends a worker that has waited
for a minute. Without this daemon each new worker would spend seconds on imports.
"""

import gc
import sys

import pandas as pd  # noqa: F401  pyarrow imports it when it first takes an array of numpy
import pyiceberg_core.transform  # noqa: F401
from pyspark.daemon import manager

import lakehouse.history.decoding
import lakehouse.tables.merge_job  # noqa: F401


def remove_jars_from_path() -> None:
    """Remove Spark's jar from the path on which Python searches modules.

    It has no Python modules, and a worker reads the directory of every archive on the path before each task, which
    takes 50 to 80 ms: nearly all of the time of an empty task.
    """
    sys.path[:] = [path for path in sys.path if not path.endswith(".jar")]
    for path in [path for path in sys.path_importer_cache if ".jar" in path]:  # also its folders, as packages
        del sys.path_importer_cache[path]


if __name__ == "__main__":
    remove_jars_from_path()
    gc.freeze()  # the collector does not touch these objects, so that workers keep sharing their pages
    manager()  # type: ignore[no-untyped-call]
