"""Machines like our users' (systemd, cgroup v2, NUMA, disks) as qemu guests, and what is checked on them."""
