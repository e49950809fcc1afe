//! Extended headers of the pax format.

use super::TarError;
use super::sparse::MAX_SPARSE_SEGMENTS;
use crate::image::tree::{Timestamp, Xattrs};

/// Prefix under which archivers keep extended attributes in pax headers.
const XATTR_PREFIX: &str = "SCHILY.xattr.";
/// Keys with metadata that is not read, to be told: access lists as text, which need the
/// archive's users, and the labels of a security module.
const NOT_READ: [&str; 4] = [
    "SCHILY.acl.access",
    "SCHILY.acl.default",
    "SCHILY.acl.ace",
    "RHT.security.selinux",
];

/// Values from extended headers that override the fixed one.
#[derive(Default)]
pub(super) struct Extensions {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) mtime: Option<Timestamp>,
    pub(super) xattrs: Xattrs,
    /// Keys with metadata that is not read.
    pub(super) not_read: Vec<&'static str>,
    pub(super) sparse: SparseHeaders,
}

/// What pax headers say of a sparse file.
#[derive(Default)]
pub(super) struct SparseHeaders {
    pub(super) name: Option<Vec<u8>>,
    pub(super) real_size: Option<u64>,
    pub(super) major: Option<u64>,
    pub(super) numbers: Vec<u64>,
}

/// Applies the records of a pax extended header: `LENGTH KEY=VALUE\n`.
pub(super) fn parse_pax(
    mut body: &[u8],
    ext: &mut Extensions,
    offset: u64,
) -> Result<(), TarError> {
    let bad = |what| TarError::Header { offset, what };
    while !body.is_empty() {
        let space = body.iter().take(20).position(|b| *b == b' ');
        let space = space.ok_or(bad("bad pax record"))?;
        let len = decimal(&body[..space]).and_then(|n| usize::try_from(n).ok());
        let len = len.filter(|n| *n > space + 1 && *n <= body.len());
        let (record, rest) = body.split_at(len.ok_or(bad("bad pax record"))?);
        body = rest;
        let record = record[space + 1..]
            .strip_suffix(b"\n")
            .ok_or(bad("bad pax record"))?;
        let equals = record
            .iter()
            .position(|b| *b == b'=')
            .ok_or(bad("bad pax record"))?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        let key = std::str::from_utf8(key).map_err(|_| bad("bad pax key"))?;
        apply_pax(key, value, ext).ok_or(bad("bad pax value"))?;
    }
    Ok(())
}

/// Applies one pax record; `None` if its value does not decode.
fn apply_pax(key: &str, value: &[u8], ext: &mut Extensions) -> Option<()> {
    if let Some(name) = key.strip_prefix(XATTR_PREFIX) {
        ext.xattrs.insert(name.as_bytes().to_vec(), value.to_vec());
        return Some(());
    }
    if let Some(key) = NOT_READ.iter().find(|known| **known == key) {
        if !ext.not_read.contains(key) {
            ext.not_read.push(key);
        }
        return Some(());
    }
    let sparse = &mut ext.sparse;
    match key {
        "path" => ext.path = Some(value.to_vec()),
        "linkpath" => ext.link = Some(value.to_vec()),
        "size" => ext.size = Some(decimal(value)?),
        "uid" => ext.uid = Some(u32::try_from(decimal(value)?).ok()?),
        "gid" => ext.gid = Some(u32::try_from(decimal(value)?).ok()?),
        "mtime" => ext.mtime = Some(pax_time(value)?),
        "GNU.sparse.name" => sparse.name = Some(value.to_vec()),
        "GNU.sparse.size" | "GNU.sparse.realsize" => sparse.real_size = Some(decimal(value)?),
        "GNU.sparse.major" => sparse.major = Some(decimal(value)?),
        "GNU.sparse.offset" | "GNU.sparse.numbytes" => push_number(sparse, value)?,
        "GNU.sparse.map" => {
            for number in value.split(|b| *b == b',').filter(|n| !n.is_empty()) {
                push_number(sparse, number)?;
            }
        }
        _ => {}
    }
    Some(())
}

fn push_number(sparse: &mut SparseHeaders, digits: &[u8]) -> Option<()> {
    if sparse.numbers.len() >= 2 * MAX_SPARSE_SEGMENTS {
        return None;
    }
    sparse.numbers.push(decimal(digits)?);
    Some(())
}

/// `seconds[.fraction]`, possibly negative.
fn pax_time(value: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction
        .chars()
        .chain(std::iter::repeat('0'))
        .take(9)
        .collect();
    let mut nanoseconds: u32 = digits.parse().ok()?;
    if whole.starts_with('-') && nanoseconds > 0 {
        seconds = seconds.checked_sub(1)?;
        nanoseconds = 1_000_000_000 - nanoseconds;
    }
    Some(Timestamp {
        seconds,
        nanoseconds,
    })
}

pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
