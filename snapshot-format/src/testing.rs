//! The decoders as functions of bytes, for fuzzers and for runs over a corpus with mutations.
//!
//! Any input must be refused or decode to a value that has one encoding; anything else is a panic, which is the finding.

use crate::fields::{FieldReader, FieldWriter, MAX_FIELDS};
use crate::lineage::{Lineage, ResolveError};
use crate::lineage_entry::LineageEntry;
use crate::map::{
    MAX_LEVEL, MapNode, MapReader, MapRoot, NODE_CHILDREN, NoSuchNode, NodeSource, SeenNodes,
};
use crate::point::{CHECKSUM_BYTES, HEADER_BYTES};
use crate::verify::{ChunkLookup, verify_bytes, verify_chunks};
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
    let findings = verify_bytes(bytes);
    let Ok(record) = PointRecord::decode(bytes) else {
        assert_eq!(findings.len(), 1, "an unreadable record is one finding");
        return;
    };
    // What was read is within the limits, so it can be written; a second encoding is the canonical one.
    let again = record
        .encode()
        .expect("a record that was read can be written");
    assert_eq!(PointRecord::decode(&again).as_ref(), Ok(&record));
    assert_eq!(record.encode().as_ref(), Ok(&again));
    // None of its nodes is there: each map that is not of zeros is one finding.
    let maps = record.parts().filter(|part| !part.map.is_zeros()).count();
    assert_eq!(
        verify_chunks(&record, &Nothing).len(),
        maps + usize::from(maps == 0 && record.data_bytes > 0)
    );
}

struct Nothing;

impl ChunkLookup for Nothing {
    fn has(&self, _: &ChunkRef) -> bool {
        false
    }

    fn node(&self, _: &ChunkRef) -> Option<Vec<u8>> {
        None
    }
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

/// `data` as a node of a chunk map: what is read has exactly the bytes it was read from, and belongs to one level.
///
/// # Panics
/// If a node has two encodings or two levels.
pub fn map_node(data: &[u8]) {
    let nodes: Vec<_> = (0..=u8::MAX)
        .filter_map(|level| MapNode::decode(data, level).ok())
        .collect();
    assert!(nodes.len() <= 1, "a node of two levels");
    for node in nodes {
        assert_eq!(node.encode(), data);
        assert!(node.level() <= MAX_LEVEL);
    }
}

/// `data` as the nodes of a chunk map, wherever names lead: shared, malformed and missing ones among them. The ways to read
/// a map agree, and none costs more than the different nodes.
///
/// # Panics
/// If they differ or do not end.
pub fn chunk_map(data: &[u8]) {
    const LOOKED_AT: usize = 300;
    let Some(map) = data
        .get(4)
        .and_then(|level| MapRoot::new(*level, ChunkRef([0xff; 32])))
    else {
        return;
    };
    let reader = MapReader::new(Slices(data));
    let mut last = None;
    for found in reader.data(&map).take(LOOKED_AT) {
        let Ok((index, chunk)) = found else { break };
        assert!(last < Some(index), "places rise");
        assert_eq!(reader.get(&map, index).ok(), Some(chunk));
        last = Some(index);
    }
    let mut names = 0;
    let whole = reader.visit_distinct(&map, &mut SeenNodes::default(), &mut |_| names += 1);
    // Nodes begin at 256 places, each has 16 names.
    assert!(names <= 1 + 256 * NODE_CHILDREN * (NODE_CHILDREN + 1));
    let record = PointRecord {
        disks: vec![crate::DiskMap {
            name: "root".into(),
            size_bytes: crate::limits::MAX_DISK_BYTES,
            map,
        }],
        ..PointRecord::default()
    };
    let damaged = verify_chunks(&record, &Slices(data))
        .iter()
        .any(|finding| finding.level == crate::Level::Error);
    if whole.is_err() {
        assert!(damaged, "what cannot be read is found");
    }
}

/// Nodes that begin where the first byte of their name says, the topmost at the front.
struct Slices<'a>(&'a [u8]);

impl NodeSource for Slices<'_> {
    type Error = NoSuchNode;

    fn node(&self, id: &ChunkRef) -> Result<Vec<u8>, NoSuchNode> {
        let start = usize::from(id.0[0].wrapping_add(1)) * 8;
        let bytes = self.0.get(start..).unwrap_or_default();
        let names = bytes.get(6..8).map_or(0, |present| {
            present.iter().map(|byte| byte.count_ones() as usize).sum()
        });
        let node = bytes.get(..8 + 32 * names).ok_or(NoSuchNode(*id))?;
        Ok(node.to_vec())
    }
}

impl ChunkLookup for Slices<'_> {
    fn has(&self, _: &ChunkRef) -> bool {
        true
    }

    fn node(&self, node: &ChunkRef) -> Option<Vec<u8>> {
        NodeSource::node(self, node).ok()
    }
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
        autosave: false,
    }
}
