//! Full disks, failing writes and failing syncs.

use std::io::ErrorKind;
use std::sync::Arc;

use cow_disk::testing::{Fault, FaultFile, FaultPlan, MemoryFile, Operation};
use cow_disk::{Base, BlockDevice, DiskError, GRANULE_BYTES, Layer, LayeredDisk, Overlay};
use cow_disk::{OverlayError, OverlayFile};
use proptest::prelude::*;

const DISK: u64 = 16 * GRANULE_BYTES;

type Shared = Arc<FaultFile<MemoryFile>>;

fn base() -> Base {
    struct Ones;
    impl cow_disk::BaseReader for Ones {
        fn read_at(&self, _: u64, buf: &mut [u8]) -> std::io::Result<()> {
            buf.fill(1);
            Ok(())
        }
        fn size_bytes(&self) -> u64 {
            DISK
        }
    }
    Base::reader(Arc::new(Ones))
}

fn faulty() -> (FaultPlan, Shared, LayeredDisk) {
    let plan = FaultPlan::default();
    let file = Arc::new(FaultFile::new(MemoryFile::default(), plan.clone()));
    let top = Overlay::create_shared(file.clone(), DISK).unwrap();
    let disk = LayeredDisk::new(base(), Vec::new(), top).unwrap();
    (plan, file, disk)
}

fn fault(operation: Operation, after: u64, kind: ErrorKind) -> Fault {
    Fault {
        operation,
        after,
        times: 1,
        kind,
        partial_bytes: 0,
    }
}

fn content(disk: &LayeredDisk) -> Vec<u8> {
    let mut buf = vec![0; DISK as usize];
    disk.read_at(0, &mut buf).unwrap();
    buf
}

fn reopened(file: &Shared) -> LayeredDisk {
    let top = Overlay::open_shared(file.clone()).unwrap();
    LayeredDisk::new(base(), Vec::new(), top).unwrap()
}

#[test]
fn a_full_disk_loses_nothing_and_may_have_room_again() {
    let (plan, file, disk) = faulty();
    disk.write_at(0, &[2; 4096]).unwrap();
    // The first write of each request is the map's, the second the data's.
    for after in 0..2 {
        plan.add(fault(Operation::Write, after, ErrorKind::StorageFull));
        let error = disk.write_at(4096 + 100, &[3; 50]).unwrap_err();
        let DiskError::Write { source, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(source.kind(), ErrorKind::StorageFull);
        let mut expected = vec![1; DISK as usize];
        expected[..4096].fill(2);
        assert!(content(&disk) == expected);
        assert!(content(&reopened(&file)) == expected);
    }
    disk.write_at(4096 + 100, &[3; 50]).unwrap();
    disk.flush().unwrap();
    assert_eq!(content(&reopened(&file))[4096 + 99..4096 + 101], [1, 3]);
}

#[test]
fn a_failed_sync_poisons() {
    let (plan, _, disk) = faulty();
    disk.write_at(0, &[2; 4096]).unwrap();
    plan.add(fault(Operation::Sync, 0, ErrorKind::Other));
    assert!(matches!(disk.flush(), Err(DiskError::Sync { .. })));
    assert!(matches!(disk.flush(), Err(DiskError::Poisoned)));
    assert!(matches!(
        disk.write_at(0, &[3; 10]),
        Err(DiskError::Poisoned)
    ));
    assert!(matches!(disk.discard(0, 4096), Err(DiskError::Poisoned)));
    assert_eq!(content(&disk)[..4096], [2; 4096]);
}

#[test]
fn a_poisoned_layer_below_fails_every_flush() {
    let (plan, _, disk) = faulty();
    disk.write_at(0, &[2; 4096]).unwrap();
    let top = Overlay::create(MemoryFile::default(), DISK).unwrap();
    let view = disk.freeze(top).unwrap();
    plan.add(fault(Operation::Sync, 0, ErrorKind::Other));
    assert!(matches!(disk.flush(), Err(DiskError::Sync { .. })));
    assert!(matches!(disk.flush(), Err(DiskError::Poisoned)));
    // Once its content is known to be safe elsewhere, the disk is sound again.
    disk.rebase(base(), view.newest().id()).unwrap();
    disk.flush().unwrap();
}

#[test]
fn a_map_that_cannot_be_mended_poisons() {
    let (plan, _, disk) = faulty();
    let twice = Fault {
        times: 2,
        ..fault(Operation::Write, 0, ErrorKind::Other)
    };
    plan.add(twice);
    assert!(matches!(
        disk.write_at(0, &[2; 4096]),
        Err(DiskError::Write { .. })
    ));
    assert!(matches!(
        disk.write_at(0, &[2; 4096]),
        Err(DiskError::Poisoned)
    ));
}

#[test]
fn a_failed_punch_fails_the_flush_and_is_made_up_for() {
    let (plan, file, disk) = faulty();
    disk.write_at(0, &[2; 4096]).unwrap();
    disk.flush().unwrap();
    disk.discard(0, 4096).unwrap();
    let stored = file.stored_bytes().unwrap();
    plan.add(fault(Operation::Punch, 0, ErrorKind::Other));
    assert!(matches!(disk.flush(), Err(DiskError::Write { .. })));
    assert_eq!(content(&disk)[..4096], [0; 4096]);
    disk.flush().unwrap();
    assert_eq!(file.stored_bytes().unwrap(), stored - 4096);
}

#[test]
fn errors_of_reading_are_passed_on() {
    let (plan, _, disk) = faulty();
    disk.write_at(0, &[2; 4096]).unwrap();
    plan.add(fault(Operation::Read, 0, ErrorKind::Other));
    let error = disk.read_at(10, &mut [0; 10]).unwrap_err();
    assert!(matches!(
        error,
        DiskError::Read {
            offset_bytes: 10,
            ..
        }
    ));
}

#[test]
fn creating_on_a_full_disk_fails() {
    let plan = FaultPlan::default();
    plan.add(fault(Operation::Write, 0, ErrorKind::StorageFull));
    let file = FaultFile::new(MemoryFile::default(), plan);
    let error = Overlay::create(file, DISK).unwrap_err();
    assert!(matches!(error, OverlayError::Io { .. }));
}

#[derive(Debug, Clone)]
enum Op {
    Write { at: usize, len: usize, byte: u8 },
    Discard { at: usize, len: usize },
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..128usize, 1..24usize).prop_map(|(at, len)| (at, len.min(128 - at)));
    prop_oneof![
        4 => (range(), 0..4u8).prop_map(|((at, len), byte)| Op::Write { at, len, byte }),
        2 => range().prop_map(|(at, len)| Op::Discard { at, len }),
        1 => Just(Op::Flush),
    ]
}

fn any_fault() -> impl Strategy<Value = Fault> {
    let operation = prop_oneof![
        3 => Just(Operation::Write),
        1 => Just(Operation::Punch),
        1 => Just(Operation::Read),
    ];
    (operation, 0..40u64, 1..4u64, 0..3usize).prop_map(|(operation, after, times, granules)| {
        Fault {
            operation,
            after,
            times,
            kind: ErrorKind::StorageFull,
            partial_bytes: granules * 4096,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// What a failed request leaves is old or new; everything else is exact, also when the files
    /// are opened again by another process.
    #[test]
    fn failures_touch_nothing_else(
        faults in prop::collection::vec(any_fault(), 1..5),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let (plan, file, disk) = faulty();
        faults.into_iter().for_each(|fault| plan.add(fault));
        let mut possible: Vec<Vec<u8>> = vec![vec![1]; 128];
        for op in ops {
            let (result, range, byte) = match op {
                Op::Write { at, len, byte } => {
                    let data = vec![byte; len * 512];
                    (disk.write_at(at as u64 * 512, &data), at..at + len, byte)
                }
                Op::Discard { at, len } => {
                    let result = disk.discard(at as u64 * 512, len as u64 * 512);
                    let start = at.div_ceil(8) * 8;
                    (result, start..((at + len) / 8 * 8).max(start), 0)
                }
                Op::Flush => (disk.flush(), 0..0, 0),
            };
            for sector in &mut possible[range] {
                match result {
                    Ok(()) => *sector = vec![byte],
                    Err(_) => sector.push(byte),
                }
            }
        }
        plan.clear();
        for disk in [&disk, &reopened(&file)] {
            for (sector, bytes) in content(disk).chunks_exact(512).enumerate() {
                prop_assert!(
                    possible[sector].iter().any(|byte| bytes.iter().all(|found| found == byte)),
                    "sector {} holds {}, not one of {:?}", sector, bytes[0], possible[sector],
                );
            }
        }
    }
}

#[test]
fn sealed_files_take_no_writes() {
    let (_, file, disk) = faulty();
    disk.write_at(0, &[2; 4096]).unwrap();
    let layer = Layer::open_shared(file).unwrap();
    assert_eq!(layer.changed_extents().len(), 1);
    assert_eq!(layer.disk_bytes(), DISK);
}
