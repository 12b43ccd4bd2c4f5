"""What runs on a machine: leases chunks, runs their items in worker processes, stores the results."""
