"""Clocks and timers, watched by one process each.

clock.py        runs until /run/stop appears, then prints what went wrong, or `ok`.

A sleep of 5 s begins when /run/sleep appears; when it ends, its monotonic length lies in /run/slept.
/run/ticks holds the number of ticks of a 50 ms timer. Two processes keep two vCPUs busy and watch that
neither the monotonic clock nor the one per vCPU runs backwards.
"""
import os, time

STOP = "/run/stop"


def write(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def watch(number):
    os.sched_setaffinity(0, {number % os.cpu_count()})
    last, backwards = time.monotonic_ns(), 0
    rounds = 0
    while rounds % 4096 or not os.path.exists(STOP):
        now = time.monotonic_ns()
        backwards += now < last
        last = now
        rounds += 1
    write(f"/run/watch-{number}", f"{backwards}")


def tick():
    ticks = 0
    while not os.path.exists(STOP):
        time.sleep(0.05)
        ticks += 1
        write("/run/ticks", str(ticks))


def sleep():
    while not os.path.exists("/run/sleep"):
        time.sleep(0.02)
    begin = time.monotonic()
    write("/run/sleeps", str(begin))
    time.sleep(5)
    write("/run/slept", str(time.monotonic() - begin))


children = []
for body in (lambda: watch(0), lambda: watch(1), tick, sleep):
    child = os.fork()
    if child == 0:
        body()
        os._exit(0)
    children.append(child)
while not os.path.exists("/run/ticks"):
    time.sleep(0.05)
write("/run/ready", "")
for child in children:
    _, status = os.waitpid(child, 0)
    if status:
        print(f"a child ended with {status}")
backwards = [open(f"/run/watch-{number}").read() for number in (0, 1)]
print("ok" if backwards == ["0", "0"] else f"backwards: {backwards}", flush=True)
