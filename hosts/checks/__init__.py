"""What must hold on each kind of host; run by `python -m hosts`, a guest for each file."""
