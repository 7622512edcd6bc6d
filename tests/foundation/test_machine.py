"""The processor's instructions, and the kernels of OpenBLAS."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from foundation import machine

ROOT = Path(__file__).parents[2]
AVX512 = "fpu avx2 avx512f avx512cd avx512dq avx512bw avx512vl"


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "as it was")  # so that it is undone
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    return tmp_path / "cpuinfo"


def test_instructions_are_those_of_the_first_core(cpuinfo):
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2\nbugs\t: x\nflags\t\t: other\n")
    assert machine.cpu_instructions() == {"fpu", "avx2"}


@pytest.mark.parametrize(
    ("flags", "chosen", "kernels"),
    [
        (AVX512, None, "SkylakeX"),
        (AVX512, "Haswell", "Haswell"),
        (AVX512.replace("avx512vl", ""), None, None),
        ("fpu avx2", None, None),
    ],
)
def test_openblas_gets_the_kernels_that_the_processor_can_run(
    cpuinfo, monkeypatch, flags, chosen, kernels
):
    cpuinfo.write_text(f"flags\t\t: {flags}\n")
    if chosen:
        monkeypatch.setenv("OPENBLAS_CORETYPE", chosen)
    machine.let_openblas_use_avx512()
    assert os.environ.get("OPENBLAS_CORETYPE") == kernels


@pytest.mark.parametrize(
    ("line", "emulates"),
    [
        ("flags\t\t: fpu avx512f avx512_vnni", True),
        ("flags\t\t: fpu avx512f avx512_bf16", False),
        ("flags\t\t: fpu amx_bf16", False),
        ("Features\t: fp asimd", False),  # it does not say
    ],
)
def test_bfloat16_is_emulated_where_no_instruction_computes_with_it(cpuinfo, line, emulates):
    cpuinfo.write_text(line + "\n")
    assert machine.emulates_bfloat16() == emulates


NUMPY_IS_LATER = """
import sys
import bench.__main__
assert "numpy" not in sys.modules
"""


@pytest.mark.slow
def test_the_command_line_names_kernels_before_numpy_is_imported():
    subprocess.run([sys.executable, "-c", NUMPY_IS_LATER], cwd=ROOT, check=True)
