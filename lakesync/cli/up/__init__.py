"""`lakesync up`: starts the gateway, Spark and Dagster on this machine, supervises them and stops them."""
