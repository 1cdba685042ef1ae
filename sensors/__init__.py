"""What watches staging and the runs: sensors look and request, nothing else."""
