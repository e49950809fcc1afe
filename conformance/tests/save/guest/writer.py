"""Counts in a file; says a number only when it is durable."""
import os

file = os.open("/root/count", os.O_RDWR | os.O_CREAT, 0o600)
number = int(os.pread(file, 20, 0) or b"0")
while True:
    number += 1
    os.pwrite(file, b"%020d" % number, 0)
    os.fsync(file)
    print(number, flush=True)
