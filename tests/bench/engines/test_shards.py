"""Shards: every unit in exactly one share, as the command line or the scheduler says."""

import pytest
from tests.bench.test_unit import CHUNKS, manifest

from sightline.bench.engines.shards import shard_of
from sightline.bench.unit import Chunk, SourceDigests
from sightline.bench.unit_slots import share_of, slots_of, unit_at
from sightline.errors import InputError


@pytest.mark.parametrize("maps", [3, True, False])
def test_slots_are_the_units_with_their_keys(maps):
    from dataclasses import replace

    source = SourceDigests({"ixg": "aa", "random": "ü"}, {"insertion": "bb"})
    for one in (manifest(CHUNKS, maps=maps, models=2), replace(manifest(CHUNKS, maps=maps), source=source)):
        slots, units = slots_of(one), list(one.units())
        assert [slot.key for slot in slots] == [unit.key for unit in units]
        assert [unit_at(one, slot) for slot in slots] == units
    assert list(slots_of(manifest(()))) == []


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("chunks", [1, 3, 30])
def test_every_unit_is_in_exactly_one_share_and_shares_are_even(count, chunks):
    slots = slots_of(manifest([Chunk((f"i{index}",), str(index)) for index in range(chunks)], models=2))
    shares = [share_of(slots, index, count) for index in range(count)]
    assert sorted(slot.key for share in shares for slot in share) == sorted(slot.key for slot in slots)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 2  # the recipes of a chunk
    if chunks == 30 and count == 3:
        assert len({(slot.model, slot.chunk) for slot in shares[0]}) == len(shares[0]) / 2


@pytest.mark.parametrize(
    ("variables", "share"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),
        ({"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "8"}, (5, 8)),
        ({"SLURM_ARRAY_TASK_ID": "8", "SLURM_ARRAY_TASK_COUNT": "8", "SLURM_ARRAY_TASK_MIN": "1"}, (7, 8)),
        (
            {
                "SLURM_ARRAY_TASK_ID": "30",
                "SLURM_ARRAY_TASK_COUNT": "4",
                "SLURM_ARRAY_TASK_MIN": "10",
                "SLURM_ARRAY_TASK_STEP": "10",
                "RANK": "0",
                "WORLD_SIZE": "2",
            },
            (2, 4),
        ),
    ],
)
def test_the_scheduler_says_which_share(variables, share):
    assert shard_of(environment=variables) == share
    assert shard_of("1/2", variables) == (1, 2)


@pytest.mark.parametrize("text", ["2/2", "0/0", "-1/2", "1", "a/b", "1/2/3", "", "1e3/9", "9" * 12 + "/3"])
def test_a_share_that_does_not_exist_is_told(text):
    with pytest.raises(InputError, match="shares"):
        shard_of(text)


def test_a_scheduler_that_says_nonsense_is_told():
    with pytest.raises(InputError, match="RANK is 'x', no number; give --shard"):
        shard_of(environment={"RANK": "x", "WORLD_SIZE": "2"})
    with pytest.raises(InputError, match="share 4 of 4"):
        shard_of(environment={"RANK": "4", "WORLD_SIZE": "4"})
