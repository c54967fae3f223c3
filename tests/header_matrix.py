"""Compiles the CUDA sources against every torch version that we support, and looks for virtuals we do not forward.

    python tests/header_matrix.py [VERSION ...]

Each version's wheel is downloaded once; versions that pip does not serve are told and passed over.
"""

from __future__ import annotations

import sys
import time

import torch_headers

VERSIONS = ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")


def main(versions: list[str]) -> int:
    cuda = torch_headers.cuda_wheel_include()
    failures = 0
    for version in versions or VERSIONS:
        try:
            include = torch_headers.torch_include(version)
        except LookupError as error:
            print(f"{version:8} not served: {error}")
            continue
        begin = time.perf_counter()
        complaints = torch_headers.compile_cuda_sources(include, cuda, version)
        missing = torch_headers.missing(include)
        seconds = time.perf_counter() - begin
        ok = not complaints and not missing
        failures += not ok
        print(f"{version:8} {'ok' if ok else 'FAILED'}  {sum(torch_headers.virtuals(include).values())} virtuals, "
              f"{len(missing)} not forwarded{': ' + ', '.join(missing) if missing else ''}, {seconds:.1f} s")
        if complaints:
            print(complaints[:2000])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
