//! Every decoder over a corpus and its mutations: what libFuzzer does at length, on any compiler.

mod common;

use common::{full_nodes, full_record};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use snapshot_format::fields::FieldWriter;
use snapshot_format::*;

/// Mutations of each input; `SMOLVM_LONG=1` takes a hundred times as many.
const MUTATIONS: usize = 20_000;

fn run(decoder: fn(&[u8]), corpus: &[Vec<u8>]) {
    let long = std::env::var_os("SMOLVM_LONG").is_some();
    let rounds = if long { MUTATIONS * 100 } else { MUTATIONS };
    let mut rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    for seed in corpus {
        decoder(seed);
        for _ in 0..rounds {
            let mut data = seed.clone();
            for _ in 0..=rng.next_u32() % 3 {
                mutate(&mut data, &mut rng);
            }
            decoder(&data);
        }
    }
}

fn mutate(data: &mut Vec<u8>, rng: &mut TestRng) {
    let mut below = |limit: usize| rng.next_u64() as usize % limit.max(1);
    let (at, kind) = (below(data.len()), below(6));
    match kind {
        _ if data.is_empty() => data.push(below(256) as u8),
        0 => data[at] ^= 1 << below(8),
        1 => data[at] = [0, 1, 0x7f, 0x80, 0xff][below(5)],
        2 => data.truncate(at),
        3 => data.insert(at, below(256) as u8),
        4 => drop(data.remove(at)),
        _ => {
            let end = at + below(64).min(data.len() - at);
            let part = data[at..end].to_vec();
            let to = below(data.len());
            data.splice(to..to, part);
        }
    }
}

#[test]
fn point_records() {
    let corpus = [full_record(), PointRecord::default()].map(|record| record.encode().unwrap());
    let bodies = corpus
        .clone()
        .map(|bytes| bytes[24..bytes.len() - 4].to_vec());
    run(testing::point_record, &[corpus, bodies].concat());
}

#[test]
fn state_records() {
    let corpus: Vec<_> = full_record()
        .states
        .iter()
        .map(StateRecord::encode)
        .collect();
    run(testing::state_record, &corpus);
}

#[test]
fn numbered_fields() {
    let mut writer = FieldWriter::new();
    writer
        .u64(1, 77)
        .text(2, "abc")
        .u64(1, 70_000)
        .nested(3, |inner| {
            inner.bool(1, true);
        });
    run(testing::fields, &[vec![], writer.finish()]);
}

#[test]
fn map_nodes() {
    let nodes: Vec<_> = full_nodes()
        .iter()
        .map(|(_, bytes)| bytes.to_vec())
        .collect();
    run(testing::map_node, &nodes);
}

/// Nodes of three levels that begin every 40 bytes; each but the last names the two that follow.
#[test]
fn chunk_maps() {
    let mut corpus = Vec::new();
    for (number, level) in (0u8..).zip([2, 1, 0, 1, 0, 0]) {
        let mut nodes = MapNodes::new();
        // A name leads to eight times its first byte and one.
        let follows = |steps: u8| ChunkRef([(number + steps) * 9 - 1; 32]);
        let map = nodes.build([(0, follows(1)), (5, follows(2))]).unwrap();
        let mut bytes = nodes.get(&map.node()).unwrap().to_vec();
        bytes[4] = level;
        corpus.extend(bytes);
    }
    run(testing::chunk_map, &[corpus]);
}

#[test]
fn lines_of_the_log() {
    let (point, _) = Point::seal(full_record()).unwrap();
    run(
        testing::lineage_line,
        &[LineageEntry::from(&point).to_line().into_bytes()],
    );
}

#[test]
fn names_of_generations() {
    let texts = [
        "~1",
        "~99",
        "abababab",
        "ababababab00",
        "01abababab",
        "\u{fc}bababab",
        "\n",
    ];
    run(
        testing::generation,
        &texts.map(|text| text.as_bytes().to_vec()),
    );
}
