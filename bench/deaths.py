"""How often is the cause of a death named rightly? Prints the wrong ones, the shares, the matrix (label, diagnosis).

python -m bench.deaths              all deaths of the corpus
python -m bench.deaths --first      only those that were written down before there was a rule
"""

import argparse
import sys
import time
from collections import Counter

from supervisor.core.diagnosis.diagnose import diagnose
from supervisor.core.diagnosis.kinds import MEANINGS
from supervisor.core.failures.restart import Cause
from tests.core.diagnosis.corpus_files import LabelledDeath, corpus

REQUIRED = 0.95


def main() -> int:
    """Returns 1 if fewer than REQUIRED are right, or if a transient one is called final."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", action="store_true", help="only those that were written down before any rule")
    parser.add_argument("--matrix", action="store_true", help="also print how often each label got each diagnosis")
    arguments = parser.parse_args()
    deaths = [death for death in corpus() if death.is_first or not arguments.first]
    pairs: Counter[tuple[str, str]] = Counter()
    final = 0
    began = time.perf_counter()
    for death in deaths:
        diagnosis = diagnose(death.evidence)
        pairs[death.kind, diagnosis.kind] += 1
        meaning = MEANINGS[diagnosis.kind]
        if _is_transient(death) and meaning.cause is Cause.SETUP:
            final += 1
        if diagnosis.kind != death.kind:
            print(f"WRONG {death.name}: {death.kind}, not {diagnosis.kind}: {diagnosis.line}")
    elapsed_s = time.perf_counter() - began
    right = sum(count for (label, kind), count in pairs.items() if label == kind)
    if arguments.matrix:
        for (label, kind), count in sorted(pairs.items()):
            print(f"{label:24} {kind:24} {count:4}{'' if label == kind else '  WRONG'}")
    print(
        f"{right} of {len(deaths)} right ({right / len(deaths):.1%}); {final} transient ones called final; "
        f"{1000 * elapsed_s / len(deaths):.2f} ms each"
    )
    return 0 if right >= REQUIRED * len(deaths) and final == 0 else 1


def _is_transient(death: LabelledDeath) -> bool:
    return MEANINGS[death.kind].is_transient


if __name__ == "__main__":
    sys.exit(main())
