"""What a chunk's buffer leaves behind serves the next one: no pages are taken from the system anew."""

import platform
import resource
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from patchswarm.daemon import memory
if sys.argv[1] == "kept":
    assert memory.keep_freed()
def taken():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
size = 4 * 1024 * 1024
first = [bytes([1]) * size for _ in range(2)]
del first
since = taken()
for _ in range(100):
    two = [bytes([1]) * size for _ in range(2)]
    del two
print(taken() - since)
"""


def pages_taken(how):
    made = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True, timeout=60)
    return int(made.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_freed_buffer_is_not_given_back_and_taken_again():
    buffers = 200 * 4 * 1024 * 1024 // resource.getpagesize()
    assert pages_taken("not kept") > buffers // 2
    assert pages_taken("kept") < buffers // 20
