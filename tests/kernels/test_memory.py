"""Memory: what is free in a control group, which errors mean that there is none, and functions that are stopped in time."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import pytest
import torch

from leakscope.kernels import memory
from leakscope.kernels.heap import give_back
from leakscope.kernels.memory import OverLimitError, count_bytes, is_out_of_memory, left_in_group, peak_bytes

GIB = 2**30


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n", encoding="ascii")


def test_the_tightest_group_of_version_two_counts_and_its_caches_are_free(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("0::/outer/inner\n", encoding="ascii")
    assert left_in_group(groups, tmp_path) == sys.maxsize
    write(tmp_path / "outer/inner", memory__max="max", memory__current=GIB)
    assert left_in_group(groups, tmp_path) == sys.maxsize
    write(tmp_path / "outer", memory__max=4 * GIB, memory__current=3 * GIB, memory__stat=f"anon 5\ninactive_file {GIB}")
    assert left_in_group(groups, tmp_path) == 2 * GIB


def test_a_group_of_version_one_counts_also_where_only_its_mount_is_visible(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("9:cpu:/a\n4:memory:/somewhere/else\n0::/\n", encoding="ascii")
    limits = {"memory__limit_in_bytes": 3 * GIB, "memory__usage_in_bytes": 2 * GIB}
    write(tmp_path / "memory", **limits, memory__stat="inactive_file 7\ntotal_inactive_file 1000")
    assert left_in_group(groups, tmp_path) == GIB + 1000


def test_no_more_is_available_than_the_group_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "left_in_group", lambda: 12345)
    assert memory.available(torch.device("cpu")) == 12345


def test_a_function_is_stopped_when_its_tensors_pass_the_limit() -> None:
    made = []

    def many() -> None:
        made.extend(torch.zeros(1000) for _ in range(50))

    with pytest.raises(OverLimitError):
        count_bytes(many, 10 * 4000)
    with pytest.raises(OverLimitError):
        count_bytes(lambda: made[0].new_zeros(2**50), 2**20)  # before it is allocated
    _, held, peak, operations = count_bytes(lambda: torch.zeros(1000).add(1))
    assert (held, peak, operations) == (4000, 8000, 2)
    assert peak_bytes(lambda: torch.zeros(1000)) == 4000


@pytest.mark.parametrize(
    ("error", "means"),
    [
        (MemoryError(), True),
        (OverLimitError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes"), True),
        (RuntimeError("std::bad_alloc"), True),
        (torch.cuda.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("shapes do not fit"), False),
    ],
)
def test_the_cpu_allocators_errors_are_known(error: Exception, means: bool) -> None:
    assert is_out_of_memory(error) is means


def test_memory_that_only_a_cycle_holds_is_given_back() -> None:
    """Planning leaves traced graphs, which refer to themselves and hold tensors: 108 MiB for ResNet8, beside the run that follows."""

    class Graph:
        def __init__(self) -> None:
            self.own, self.values = self, torch.zeros(10)

    gc.disable()
    try:
        held = weakref.ref(Graph())
        assert held() is not None
        give_back()
        assert held() is None
    finally:
        gc.enable()
