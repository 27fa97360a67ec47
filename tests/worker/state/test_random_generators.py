"""NumPy's generators go on where they were, with the generators that they spawn."""

import json

import numpy as np
import pytest

from worker.state.random_generators import read_generator, write_generator


@pytest.mark.parametrize("spawned_since", [0, 3], ids=["a new process", "put back"])
@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_generator_spawns_the_same_children_again(kind: type[np.random.BitGenerator], spawned_since: int) -> None:
    generator, again = (np.random.Generator(kind(5)) for _ in range(2))
    generator.spawn(2)
    generator.random()
    state = json.loads(json.dumps(read_generator(generator)))
    expected = [*(child.random() for child in generator.spawn(2)), generator.random()]
    again.spawn(spawned_since)

    write_generator(again, state)

    assert [*(child.random() for child in again.spawn(2)), again.random()] == expected
