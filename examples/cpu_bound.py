"""Work that computes for long: a process of its own, which dies with the job's lease.

`trio.run_process` kills it when the handler is cancelled, so that no core works for a job that was
given up, or that another worker has. In a thread it could not be ended.

Run it: hastetrio worker --handlers cpu_bound:count_primes
"""

from __future__ import annotations

import sys

import attrs
import trio

from hastetrio import JobContext, job_handler


@attrs.frozen
class Range:
    """Where to look."""

    below: int


@attrs.frozen
class Primes:
    """How many there are."""

    count: int


@job_handler("count-primes", parameters=Range)
async def count_primes(context: JobContext[Range]) -> Primes:
    """Count the primes below a number, in this file's other half."""
    command = [sys.executable, __file__, str(context.parameters.below)]
    done = await trio.run_process(command, capture_stdout=True)
    return Primes(int(done.stdout))


def primes_below(number: int) -> int:
    """The slow half, which knows nothing of trio."""
    sieve = bytearray(b"\1") * max(number, 2)
    sieve[:2] = b"\0\0"
    for candidate in range(2, int(len(sieve) ** 0.5) + 1):
        if sieve[candidate]:
            sieve[candidate * candidate :: candidate] = bytes(
                len(range(candidate * candidate, len(sieve), candidate))
            )
    return sum(sieve[:number])


if __name__ == "__main__":
    sys.stdout.write(f"{primes_below(int(sys.argv[1]))}\n")
