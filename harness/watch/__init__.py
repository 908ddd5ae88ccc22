"""Watch: finds changes for the worse in the history, confirms them, names commits.

- search: `survey`: all alerts of all series
- alerts: `Alert`: one step, drift or creep of a series; the rules for a series;
  `confirm`: compares its two commits again, in turn, on this machine
"""
