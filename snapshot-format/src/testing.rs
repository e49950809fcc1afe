//! The decoders as functions of bytes, for fuzzers and for runs over a corpus with mutations.
//!
//! Any input must be refused or decode to a value that has one encoding; anything else is a panic, which is the finding.

use crate::chunk_map::ChunkMap;
use crate::fields::{FieldReader, FieldWriter, MAX_FIELDS};
use crate::lineage::{Lineage, ResolveError};
use crate::lineage_entry::LineageEntry;
use crate::point::{CHECKSUM_BYTES, HEADER_BYTES};
use crate::verify::{verify, verify_bytes};
use crate::{CheckpointId, ChunkRef, FORMAT_VERSION, MAGIC, PointRecord, StateRecord, WallTime};

/// `data` as a record, and as the body of a record whose header and checksum fit: no fuzzer finds checksums.
///
/// # Panics
/// If the decoder breaks its promises.
pub fn point_record(data: &[u8]) {
    decoded_record(data);
    decoded_record(&record_around(data));
    if let Some(body) = data.get(HEADER_BYTES..data.len().saturating_sub(CHECKSUM_BYTES)) {
        decoded_record(&record_around(body));
    }
}

/// A record with this body, its header and checksum as they must be.
#[must_use]
pub fn record_around(body: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(body);
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decoded_record(bytes: &[u8]) {
    let findings = verify_bytes(bytes, &|chunk: &ChunkRef| chunk.0[0] < 128);
    let Ok(record) = PointRecord::decode(bytes) else {
        assert_eq!(findings.len(), 1, "an unreadable record is one finding");
        return;
    };
    let chunks = record.all_chunks().count();
    assert!(
        chunks * 32 <= bytes.len(),
        "more chunks than bytes for them"
    );
    assert!(record.all_chunks().all(|chunk| !chunk.is_zero()));
    // What was read is within the limits, so it can be written; a second encoding is the canonical one.
    let again = record
        .encode()
        .expect("a record that was read can be written");
    assert_eq!(PointRecord::decode(&again).as_ref(), Ok(&record));
    assert_eq!(record.encode().as_ref(), Ok(&again));
    let all_there = verify(&record, &|_: &ChunkRef| true);
    assert!(
        all_there.len() <= findings.len(),
        "a missing chunk mends a record"
    );
}

/// `data` as numbered fields, against a reading of the format by the letter.
///
/// # Panics
/// If the two differ.
pub fn fields(data: &[u8]) {
    let expected = fields_by_the_letter(data);
    let Ok(parsed) = FieldReader::parse(data) else {
        assert!(expected.is_none_or(|fields| fields.len() > MAX_FIELDS));
        return;
    };
    let expected = expected.expect("a malformed message was read");
    let mut writer = FieldWriter::new();
    for &(number, value) in &expected {
        writer.bytes(number, value);
        let last = expected
            .iter()
            .rev()
            .find(|(n, _)| *n == number)
            .map(|(_, v)| *v);
        assert_eq!(parsed.get(number), last);
        let integer = last.filter(|v| v.len() <= 8).map(|v| {
            v.iter()
                .rev()
                .fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte))
        });
        assert_eq!(parsed.u64(number).ok(), integer);
        let text = last.and_then(|v| std::str::from_utf8(v).ok());
        assert_eq!(parsed.text(number, usize::MAX).ok(), text);
    }
    assert_eq!(writer.finish(), data);
}

fn fields_by_the_letter(mut data: &[u8]) -> Option<Vec<(u16, &[u8])>> {
    let mut fields = Vec::new();
    while !data.is_empty() {
        let number = u16::from_le_bytes(data.get(..2)?.try_into().ok()?);
        let length = u32::from_le_bytes(data.get(2..6)?.try_into().ok()?);
        let end = 6usize.checked_add(usize::try_from(length).ok()?)?;
        fields.push((number, data.get(6..end)?));
        data = &data[end..];
    }
    Some(fields)
}

/// `data` as a state record.
///
/// # Panics
/// If what was read changes when it is written and read again.
pub fn state_record(data: &[u8]) {
    if let Ok(state) = StateRecord::decode(data) {
        assert!(state.bytes.len() <= data.len());
        assert_eq!(StateRecord::decode(&state.encode()), Ok(state));
    }
}

/// `data` as a chunk map: what is read has exactly the bytes it was read from.
///
/// # Panics
/// If a map has two encodings, or its accessors differ.
pub fn chunk_map(data: &[u8]) {
    let Ok(map) = ChunkMap::decode(data) else {
        return;
    };
    let mut again = Vec::new();
    map.encode_into(&mut again);
    assert_eq!(again, data, "a second encoding of {map:?}");
    assert_eq!(map.encoded_len(), data.len() as u64);
    assert_eq!(map.iter_data().count() as u64, map.data_len());
    for (index, chunk) in map.iter_data() {
        assert_eq!(map.get(index), Some(chunk));
    }
    assert_eq!(map.get(map.len()), None);
}

/// `data` as a line of the log.
///
/// # Panics
/// If what was read changes when it is written and read again.
pub fn lineage_line(data: &[u8]) {
    let id = CheckpointId([7; 32]);
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(entry) = LineageEntry::from_line(id, text) {
        assert_eq!(LineageEntry::from_line(id, &entry.to_line()), Ok(entry));
    }
}

/// `data` as the name of a generation, against a naive search.
///
/// # Panics
/// If the two differ.
pub fn generation(data: &[u8]) {
    let Ok(asked) = std::str::from_utf8(data) else {
        return;
    };
    let entries: Vec<LineageEntry> = (0..4).map(entry).collect();
    let lineage = Lineage::new(entries.clone()).expect("four different points");
    let found = lineage.resolve(asked);
    let lower = asked.to_lowercase();
    let named = |entry: &&LineageEntry| entry.id.to_string().starts_with(&lower);
    let by_id: Vec<_> = entries.iter().filter(named).collect();
    match asked.strip_prefix('~') {
        Some(number) if number.bytes().all(|b| b.is_ascii_digit()) => {
            let expected = number.parse().ok().and_then(|n: usize| entries.get(n));
            assert_eq!(found.ok(), expected);
        }
        None if asked.len() >= 8 => match by_id.as_slice() {
            [one] => assert_eq!(found, Ok(*one)),
            [] => assert!(found.is_err()),
            _ => assert!(matches!(found, Err(ResolveError::Ambiguous { .. }))),
        },
        _ => assert!(matches!(found, Err(ResolveError::Spelling { .. }))),
    }
    if let Err(error) = lineage.resolve(asked) {
        assert!(
            !error.to_string().chars().any(char::is_control),
            "{error:?}"
        );
    }
}

/// Two points share their first ten digits.
fn entry(number: u8) -> LineageEntry {
    let mut id = [0xab; 32];
    id[if number < 2 { 5 } else { 0 }] = number;
    LineageEntry {
        id: CheckpointId(id),
        parent: None,
        taken: WallTime::default(),
        machine: String::new(),
        message: String::new(),
        data_bytes: 0,
    }
}
