"""The run: launches, what a run will allocate later, plans on entry."""
