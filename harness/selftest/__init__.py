"""Self-test: plants known wrong backwards and counts which of them each judge rejects.

- mutants: known wrong backwards: right ones with a mistake of mistakes.toml
- examine: runs every judge, ours and those that others use, on one trial
- scoring: counts caught errors and false alarms
"""
