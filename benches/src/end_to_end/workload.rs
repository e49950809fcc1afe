//! What guests do, the same in every machine.

use crate::BenchError;

/// More code than stays decoded on the software CPU, and a hot loop.
pub(super) const WORK: &str = "python3 -c '
import asyncio, ctypes, decimal, email.message, http.server, json, multiprocessing, pydoc, sqlite3
import unittest.mock, urllib.request, xml.dom.minidom, xml.sax.expatreader, xmlrpc.client, zipfile, zlib
rows = [(i, str(i)) for i in range(5000)]
base = sqlite3.connect(\":memory:\")
base.execute(\"create table t(a, b)\")
base.executemany(\"insert into t values (?, ?)\", rows)
assert base.execute(\"select sum(a) from t\").fetchone() == (12497500,)
assert json.loads(json.dumps(rows))[7] == [7, \"7\"]
assert zlib.decompress(zlib.compress(repr(rows).encode())) == repr(rows).encode()
assert decimal.Decimal(2).sqrt() ** 2 - 2 < decimal.Decimal(10) ** -20
assert sum(i * i % 7 for i in range(300000)) == 599998' && find /usr/lib -name '*.py' | sort | md5sum";

/// Prints the digest of what [`dirty`] wrote.
pub(super) const DIGEST: &str = "sha256sum < /dev/shm/dirty";

/// Writes random bytes to memory and prints their digest.
pub(super) fn dirty(mib: u32) -> String {
    format!("head -c {mib}M /dev/urandom > /dev/shm/dirty && {DIGEST}")
}

/// Compares the digests of what was saved and of what came back.
pub(super) fn check(expected: String, found: String) -> Result<(), BenchError> {
    match found == expected {
        true => Ok(()),
        false => Err(BenchError::Lost { expected, found }),
    }
}
