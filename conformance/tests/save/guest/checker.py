# Changes memory all the time and looks whether it is what was written; ends with the first fault.
import hashlib, os

SIZE = 4 << 20
memory = bytearray(os.urandom(SIZE))
digest = hashlib.sha256(memory).digest()
round = 0
while True:
    if hashlib.sha256(memory).digest() != digest:
        print("memory is not what was written", flush=True)
        raise SystemExit(1)
    at = (round * 65537) % (SIZE - 4096)
    memory[at:at + 4096] = round.to_bytes(8, "little") * 512
    digest = hashlib.sha256(memory).digest()
    round += 1
    with open("/run/rounds.new", "w") as out:
        out.write(str(round))
    os.rename("/run/rounds.new", "/run/rounds")
    if round == 1:
        open("/run/ready", "w").close()
