"""`python -m lakesync_dagster.daemon run …`: Dagster's daemon, with sensors looked at every two seconds.

Dagster looks whether a sensor is due every five seconds, whatever the sensors ask for: half of that, and up to all of
it, a flush that somebody waits for would stand.
"""

from dagster._daemon import sensor
from dagster._daemon.cli import main

LOOK_SECONDS = 2

if __name__ == "__main__":
    sensor.MIN_INTERVAL_LOOP_TIME = LOOK_SECONDS
    main()
