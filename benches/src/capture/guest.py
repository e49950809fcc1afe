"""What the capture bench runs in each guest: `dirty MIB LAYOUT`, `fill MIB`, `read MIB`, or `tick`.

`tick` sleeps for a millisecond again and again and notes when it was back. At SIGUSR1 it writes the longest time between
two of these moments since the last signal to /run/gap, in microseconds, without the moments close to a signal, in
which the command that sent it begins and ends.
"""
import os, signal, sys, time

REGION, MIB, PAGE, CHUNK = "/dev/shm/region", 1 << 20, 4096, 65536
AFTER, BEFORE = 80_000_000, 60_000_000


def dirty(mib, layout):
    """Writes random pages: next to each other, or one in each 64 KiB."""
    with open(REGION, "r+b") as region:
        if layout == "contiguous":
            for _ in range(mib):
                region.write(os.urandom(MIB))
        else:
            for number in range(mib * MIB // PAGE):
                region.seek(number * CHUNK)
                region.write(os.urandom(PAGE))


def fill(mib):
    with open(REGION, "ab") as region:
        for _ in range(mib):
            region.write(os.urandom(MIB))


def read(mib):
    with open(REGION, "rb") as region:
        count = sum(len(region.read(MIB)) for _ in range(mib))
    assert count == mib * MIB, count
    print(count)


def tick():
    gaps, since = [], time.monotonic_ns()

    def tell(*_):
        nonlocal gaps, since
        now = time.monotonic_ns()
        inside = [gap for at, gap in gaps if since + AFTER < at < now - BEFORE]
        with open("/run/gap.new", "w") as out:
            out.write(str(max(inside, default=0) // 1000))
        os.rename("/run/gap.new", "/run/gap")
        gaps, since = [], time.monotonic_ns()

    signal.signal(signal.SIGUSR1, tell)
    with open("/run/tick.pid", "w") as out:
        out.write(str(os.getpid()))
    last = time.monotonic_ns()
    while True:
        time.sleep(0.001)
        now = time.monotonic_ns()
        if now - last > 1_200_000:
            gaps.append((now, now - last))
        last = now


{"dirty": lambda mib, layout: dirty(int(mib), layout), "fill": lambda mib: fill(int(mib)),
 "read": lambda mib: read(int(mib)), "tick": tick}[sys.argv[1]](*sys.argv[2:])
