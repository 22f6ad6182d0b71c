"""What the masks of attention are, as far as their operators say it.

trace.py        the operators that make a mask, as torch runs them
entries.py      what stands at a place of a tensor, as a function of the place
rules.py        the operators of which that is known
conditions.py   when an entry is one or the other: linear inequalities, joined by and, or
linear.py       whether linear inequalities over whole numbers can hold together
reach.py        how far before and after its place a query may read keys
causal.py       the calls of attention whose mask is the causal one
"""
