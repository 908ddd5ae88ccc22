"""Evidence that the calls that were timed did their work.

- rotation: numbers that change while they are timed, results kept for the judge, and a
  timer that notes what happens outside its clock
- proof: decides whether a time may be shown; the least bytes and operations of an op
"""
