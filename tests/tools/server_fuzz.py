#!/usr/bin/env python3
"""Sends generated requests to a server, valid and invalid by its OpenAPI document. Uses the package schemathesis.

    python3 tests/tools/server_fuzz.py http://127.0.0.1:8080 [requests for each operation]

Every request must get a response within a minute, without a server error. Status 501 is allowed: the model lacks a capability.
"""

import os
import subprocess
import sys

import packages

PACKAGES = ["schemathesis==4.*", "hypothesis==6.*"]


def fuzz(base, n):
    import schemathesis
    from hypothesis import HealthCheck, given, settings

    document = schemathesis.openapi.from_url(f"{base}/openapi.json")
    total, kinds = 0, {}
    for found in document.get_all_operations():
        operation = found.ok()
        for mode in [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]:
            count = 0

            @settings(max_examples=n // 2, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case):
                nonlocal count
                response = case.call(base_url=base, timeout=60)
                count += 1
                kinds[response.status_code] = kinds.get(response.status_code, 0) + 1
                assert response.status_code < 500 or response.status_code == 501, (case.as_curl_command(), response.text)

            try:
                check()
            except Exception as error:
                # Some operations accept every request, so no invalid one exists.
                if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
                    raise
            total += count
    print(total, "requests:", ", ".join(f"{n} of status {status}" for status, n in sorted(kinds.items())))


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    if os.environ.get("LLAMA_FUZZ") != "here":
        python = packages.python("fuzz", PACKAGES)
        env = {**os.environ, "LLAMA_FUZZ": "here", "NO_PROXY": "127.0.0.1,localhost"}
        sys.exit(subprocess.run([python, __file__, *sys.argv[1:]], env=env).returncode)
    fuzz(sys.argv[1].rstrip("/"), int(sys.argv[2]) if len(sys.argv) == 3 else 100)


main()
