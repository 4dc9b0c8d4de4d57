"""Measurements that `make bench` runs; each prints what was reached, with the machine named."""
