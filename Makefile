# The targets; each line that begins with "name: ... ##" is its own help.
.DEFAULT_GOAL := help
.PHONY: help run agree test test-slow lint types findings faults environments framework cuda bench bench-sizes history pages report pictures clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

# Five ops at a small size: enough to see who is fast, in about twenty seconds.
TIMED = softmax layer_norm batch_norm linear matmul
# Without what compiles every shape: that would take most of the time.
LOOK = $$(.venv/bin/gradwatch list backends | grep -v jax | grep -v compile | paste -sd,)
run:  ## a first look: judge each op at ordinary numbers, time some, write the page
	@python3 scripts/environments.py
	@.venv/bin/python -m scripts.tour
	@look=$(LOOK); .venv/bin/gradwatch agree --regime normal --backend $$look; code=$$?; \
	.venv/bin/gradwatch time $(TIMED:%=--op %) --size small --budget 0.5 --backend $$look \
	  || code=$$?; \
	.venv/bin/gradwatch report; exit $$code

agree: environments  ## judge every gradient in all cases; four minutes on two cores
	.venv/bin/gradwatch agree

# mypy takes one core for a minute, so it runs beside the tests. SLOW=1 runs quick and slow
# tests in one session, which collects them and starts each framework once.
test: environments lint  ## lint, types and the test suite; SLOW=1 as in CI: slow tests too
	.venv/bin/mypy & types=$$!; \
	.venv/bin/python -m pytest -n auto --dist worksteal $(if $(SLOW),,-m "not slow"); code=$$?; \
	wait $$types && exit $$code

test-slow: environments  ## the tests that take more than ten seconds
	.venv/bin/python -m pytest -n auto --dist worksteal -m slow

lint: environments  ## ruff: rules and format; import-linter: the layers
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

types: environments  ## mypy --strict
	.venv/bin/mypy

findings: environments  ## search for defects for ten minutes, then write docs/findings.md
	.venv/bin/gradwatch fuzz --budget 600 --folder results/findings
	.venv/bin/python scripts/findings.py

# Six minutes for 500 on a quiet machine with two cores; SEED=2 injects others.
N_FAULTS = 500
SEED = 1
faults: environments  ## inject N_FAULTS=500 faults from a SEED=1, show what was lost
	.venv/bin/python -m tests.faults --faults $(N_FAULTS) --seed $(SEED)

environments:  ## make .venv and those of OneFlow and JAX, if something has changed
	@python3 scripts/environments.py

framework:  ## add NAME=paddle, mlx or tensorflow; jax again
	@python3 scripts/environments.py --require "$(NAME)"

cuda: environments  ## on a machine with a GPU: all checks that need one, in results/cuda
	@.venv/bin/python scripts/cuda.py

bench: environments  ## measure HEAD for the history: the quick set
	.venv/bin/asv run 'HEAD^!'

bench-sizes: environments  ## measure HEAD for the history: all sizes, two precisions
	.venv/bin/asv run --bench '^bench_sizes[.]' 'HEAD^!'

# Only impls comes from a commit, so those that leave it as it was are passed over; before
# SINCE the engine was no package, which is what today's judge reads. Recorded commits are
# not measured again: an interrupted run can be continued, and a later one adds the rest.
SINCE = 3a830b5
EVERY = 4
history: environments  ## record each fourth commit that changed impls, or RANGE=TAGS
	@$(if $(RANGE),true,git rev-list --first-parent --reverse $(SINCE)~..HEAD -- impls \
	  | awk '(NR - 1) % $(EVERY) == 0') \
	| .venv/bin/asv --config asv.history.json run --skip-existing $(or $(RANGE),HASHFILE:-)

pages: environments  ## asv's pages of the history, in .asv/html
	.venv/bin/asv publish

report: environments  ## write the dashboard of all results of this checkout, in html
	@.venv/bin/gradwatch report

pictures: report  ## take the README's picture of the overview; needs chromium
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars \
	  --window-size=1280,1000 --screenshot=docs/overview.png html/index.html

clean:  ## remove the environments, caches and build leftovers; results stay
	rm -rf .venv .venv.new .venv.old .venv-*
	rm -rf .uv .asv .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	rm -rf build dist gradwatch.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
