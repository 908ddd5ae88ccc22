"""Watch: finds what got worse in the history, measures it again, names the commit.

- survey: `survey`: all alerts of all series
- alerts: `Alert`: one step, drift or creep of a series
- budget: the reference commit, and how far a series may move from it
- confirm: compares two commits again, in turn, on this machine
"""
