//! The decoders as functions of bytes, for fuzzers and for the smoke run over a corpus with mutations.

use std::path::Path;
use std::sync::Arc;

use super::MemoryBackend;
use crate::pack::layout::{FOOTER_BYTES, Footer, HEADER_BYTES};
use crate::pack::reader::{Pack, PackIndex};
use crate::{ChunkId, MAX_CHUNK_BYTES, PackId};
use durable_files::FileBackend;

/// Opens `data` as a pack, looks up and reads every chunk. Digests are mended first, since no fuzzer finds them. Returns
/// the number of chunks that were read and verified.
///
/// # Panics
/// If a decoder breaks its promises: that is the finding.
#[must_use]
pub fn pack_index(data: &[u8]) -> usize {
    let data = mend(data.to_vec());
    let id = footer_id(&data);
    let backend = MemoryBackend::new();
    let path = Path::new("/pack");
    let written = backend
        .create_new(path)
        .and_then(|file| file.write_all_at(&data, 0));
    assert!(written.is_ok(), "the memory backend refused a write");
    let Ok(file) = backend.open(path) else {
        return 0;
    };
    let Ok(pack) = Pack::open(Arc::clone(&file), &id) else {
        return 0;
    };
    let sorted = pack.index.validate().is_ok();
    let (mut scratch, mut out) = (Vec::new(), vec![0; MAX_CHUNK_BYTES]);
    let mut readable = 0;
    for (position, entry) in pack.index.entries().enumerate() {
        let found = pack.index.position(&entry.id);
        assert!(
            !sorted || found == Some(position),
            "a sorted index missed one of its ids"
        );
        if let Ok(len) = pack.read(&entry, &mut scratch, &mut out) {
            assert_eq!(
                ChunkId::of(&out[..len]),
                entry.id,
                "a chunk was not verified"
            );
            readable += 1;
        }
    }
    readable
}

fn footer_id(data: &[u8]) -> PackId {
    let mut id = [0; 32];
    if let Some(at) = data.len().checked_sub(FOOTER_BYTES) {
        id.copy_from_slice(&data[at + 16..at + 48]);
    }
    PackId(id)
}

/// Makes checksum and index digest agree with the rest, where there is a footer at all.
fn mend(mut data: Vec<u8>) -> Vec<u8> {
    let Some(at) = data
        .len()
        .checked_sub(FOOTER_BYTES)
        .filter(|at| *at >= HEADER_BYTES)
    else {
        return data;
    };
    let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap_or_default());
    let offset = usize::try_from(word(at)).unwrap_or(usize::MAX);
    if let Some(index) = data.get(offset..at) {
        let digest = *blake3::hash(index).as_bytes();
        data[at + 16..at + 48].copy_from_slice(&digest);
    }
    let sum = crc32c::crc32c_append(crc32c::crc32c(&data[..HEADER_BYTES]), &data[at..at + 52]);
    data[at + 52..at + 56].copy_from_slice(&sum.to_le_bytes());
    data
}

/// Takes `data` as header, footer and index without a file: the limits must hold for every input.
pub fn pack_footer(data: &[u8]) {
    let Some((header, rest)) = data.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    let Some((footer, index)) = rest.split_first_chunk::<FOOTER_BYTES>() else {
        return;
    };
    let file_len = data.len() as u64;
    if let Ok(footer) = Footer::decode(header, footer, file_len) {
        assert!(
            footer.index_len() as u64 <= file_len,
            "an index longer than its file"
        );
        if let Ok(index) = PackIndex::new(index.into(), &footer) {
            let _ = index.validate();
        }
    }
}
