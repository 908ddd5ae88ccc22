"""Watch: finds what got worse in the history, measures it again, names the commit.

- search: `survey`: all alerts of all series
- alerts: `Alert`: one step, drift or creep of a series; the rules for a series;
  `confirm`: compares its two commits again, in turn, on this machine
"""
