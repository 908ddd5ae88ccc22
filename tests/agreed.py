"""The verdicts on some trials, in this process, as `gradwatch agree` gives them."""

from itertools import product

from gradwatch.harness.agreement.suite import Agreement, verdicts
from gradwatch.harness.judging.defects import known
from gradwatch.harness.workers.pool import Fleet, Task


def agree(
    trials, backends, *, devices=("cpu",), entries=None, fleet=None, timeout=60.0
) -> Agreement:
    """Run trials on backends and judge every tensor that they return."""
    listed = known.load() if entries is None else entries
    tasks = [Task(*one) for one in product(trials, backends, devices)]
    workers, agreement = fleet or Fleet(jobs=2), Agreement()
    for one in verdicts(tasks, workers, listed, timeout=timeout):
        agreement.add(one)
    if fleet is None:
        workers.close()
    agreement.gone = known.gone(agreement.records, listed)
    return agreement
