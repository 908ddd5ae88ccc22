"""Self-test: plants known wrong backwards and counts which of them each judge rejects.

- mutants: known wrong backwards: right ones with a mistake of mistakes.toml
- rivals: the judges that others use: allclose, assert_close, gradcheck
- examine: asks every judge about one trial, in a worker
- scoring: counts caught errors and false alarms
- run: `run`: all of it, on every backend
"""
