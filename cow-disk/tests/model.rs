//! The disk against a plain array of bytes.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use cow_disk::{
    Base, BaseReader, BlockDevice, ExtentKind, FrozenView, GRANULE_BYTES, LayeredDisk, Overlay,
};
use proptest::prelude::*;

const DISK: u64 = 40 * GRANULE_BYTES;

#[derive(Debug, Clone)]
enum Op {
    Write { at: u64, len: u64, byte: u8 },
    Discard { at: u64, len: u64 },
    WriteZeroes { at: u64, len: u64 },
    Read { at: u64, len: u64 },
    Flush,
    Freeze,
    Flatten { through: usize },
    Rebase { view: usize },
    ViewAsBase,
    Reopen,
}

/// Ranges that are often, but not always, aligned; always inside the disk.
fn range() -> impl Strategy<Value = (u64, u64)> {
    let aligned = (0..40u64, 1..12u64).prop_map(|(at, len)| (at * 4096, len * 4096));
    let odd = (0..DISK, 0..40_000u64);
    let sectors = (0..320u64, 1..20u64).prop_map(|(at, len)| (at * 512, len * 512));
    prop_oneof![aligned, odd, sectors].prop_map(|(at, len)| (at, len.min(DISK - at)))
}

fn op() -> impl Strategy<Value = Op> {
    // Zero bytes are written often: they have ways of their own.
    let byte = prop_oneof![Just(0u8), 1..=255u8];
    prop_oneof![
        10 => (range(), byte).prop_map(|((at, len), byte)| Op::Write { at, len, byte }),
        3 => range().prop_map(|(at, len)| Op::Discard { at, len }),
        3 => range().prop_map(|(at, len)| Op::WriteZeroes { at, len }),
        4 => range().prop_map(|(at, len)| Op::Read { at, len }),
        2 => Just(Op::Flush),
        2 => Just(Op::Freeze),
        1 => (0..8usize).prop_map(|through| Op::Flatten { through }),
        1 => (0..8usize).prop_map(|view| Op::Rebase { view }),
        1 => Just(Op::ViewAsBase),
        1 => Just(Op::Reopen),
    ]
}

struct Bytes(Vec<u8>);

impl BaseReader for Bytes {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let at = offset_bytes as usize;
        buf.copy_from_slice(&self.0[at..at + buf.len()]);
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

/// The disk, the array it must equal, and what a user of the crate keeps beside it.
struct Checked {
    disk: LayeredDisk,
    model: Vec<u8>,
    base: Base,
    base_model: Vec<u8>,
    sealed: Vec<File>,
    top: File,
    views: Vec<(FrozenView, Vec<u8>)>,
}

fn new_overlay() -> (File, Overlay) {
    let file = tempfile::tempfile().unwrap();
    let overlay = Overlay::create(file.try_clone().unwrap(), DISK).unwrap();
    (file, overlay)
}

/// Something other in every byte than what the operations write most.
fn base_content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251 + 1) as u8).collect()
}

impl Checked {
    fn new(base_len: usize, as_file: bool) -> Self {
        let content = base_content(base_len);
        let base = if as_file {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&content).unwrap();
            Base::file(file).unwrap()
        } else {
            Base::reader(Arc::new(Bytes(content.clone())))
        };
        let mut model = content;
        model.resize(DISK as usize, 0);
        let (top, overlay) = new_overlay();
        Self {
            disk: LayeredDisk::new(base.clone(), Vec::new(), overlay).unwrap(),
            base_model: model.clone(),
            model,
            base,
            sealed: Vec::new(),
            top,
            views: Vec::new(),
        }
    }

    fn fill(&mut self, at: u64, len: u64, byte: u8) {
        self.model[at as usize..(at + len) as usize].fill(byte);
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Write { at, len, byte } => {
                self.disk.write_at(at, &vec![byte; len as usize]).unwrap();
                self.fill(at, len, byte);
            }
            Op::Discard { at, len } => {
                self.disk.discard(at, len).unwrap();
                let (start, end) = (at.div_ceil(4096) * 4096, (at + len) / 4096 * 4096);
                self.fill(start, end.saturating_sub(start), 0);
            }
            Op::WriteZeroes { at, len } => {
                self.disk.write_zeroes(at, len).unwrap();
                self.fill(at, len, 0);
            }
            Op::Read { at, len } => self.check_read(at, len),
            Op::Flush => self.disk.flush().unwrap(),
            Op::Freeze => self.freeze(),
            Op::Flatten { through } => self.flatten(through),
            Op::Rebase { view } => self.rebase(view),
            Op::ViewAsBase => self.view_as_base(),
            Op::Reopen => self.reopen(),
        }
    }

    fn check_read(&self, at: u64, len: u64) {
        let mut buf = vec![0xa5; len as usize];
        self.disk.read_at(at, &mut buf).unwrap();
        assert!(buf == self.model[at as usize..(at + len) as usize]);
    }

    fn freeze(&mut self) {
        let (top, overlay) = new_overlay();
        let view = self.disk.freeze(overlay).unwrap();
        self.sealed.push(std::mem::replace(&mut self.top, top));
        self.views.push((view, self.model.clone()));
    }

    fn flatten(&mut self, through: usize) {
        let layers = self.disk.layers();
        let Some(layer) = layers.get(through) else {
            return;
        };
        let (file, overlay) = new_overlay();
        let done = self
            .disk
            .flatten(layer.id(), overlay, &mut |_, _| ControlFlow::Continue(()))
            .unwrap();
        assert_eq!(done.replaced.len(), through + 1);
        self.sealed.splice(..=through, [file]);
    }

    /// Saves a view elsewhere and makes the copy the base.
    fn rebase(&mut self, view: usize) {
        let layers = self.disk.layers();
        let Some((view, content)) = self.views.get(view) else {
            return;
        };
        let newest = view.newest().id();
        let Some(at) = layers.iter().position(|layer| layer.id() == newest) else {
            return;
        };
        let base = Base::reader(Arc::new(Bytes(content.clone())));
        let dropped = self.disk.rebase(base.clone(), newest).unwrap();
        assert_eq!(dropped.len(), at + 1);
        self.sealed.drain(..=at);
        (self.base, self.base_model) = (base, content.clone());
    }

    /// Goes on as a branch of the last view.
    fn view_as_base(&mut self) {
        let Some((view, content)) = self.views.last() else {
            return;
        };
        self.base = Base::reader(Arc::new(view.clone()));
        self.base_model = content.clone();
        let (top, overlay) = new_overlay();
        self.disk
            .replace(self.base.clone(), Vec::new(), overlay)
            .unwrap();
        self.model = content.clone();
        self.sealed.clear();
        self.top = top;
    }

    fn reopen(&mut self) {
        let sealed = self.sealed.iter().map(|file| file.try_clone().unwrap());
        let top = self.top.try_clone().unwrap();
        self.disk = LayeredDisk::from_files(self.base.clone(), sealed.collect(), top).unwrap();
    }

    /// Everything that may be asked of disk and views.
    fn check(&self) {
        self.check_read(0, DISK);
        let mut buf = vec![0; DISK as usize];
        for (view, content) in &self.views {
            view.read_at(0, &mut buf).unwrap();
            assert!(buf == *content);
        }
    }

    /// A frozen disk's extents and base make up its content.
    fn check_extents(&mut self) {
        self.freeze();
        let (view, content) = self.views.last().unwrap();
        let mut rebuilt = self.base_model.clone();
        for extent in view.changed_extents() {
            let range = extent.offset_bytes as usize..extent.end_bytes() as usize;
            match extent.kind {
                ExtentKind::Zeroed => rebuilt[range].fill(0),
                ExtentKind::Data => view
                    .read_at(extent.offset_bytes, &mut rebuilt[range])
                    .unwrap(),
            }
        }
        assert!(rebuilt == *content);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn equals_an_array(
        base_len in prop_oneof![Just(0), Just(DISK as usize), 0..DISK as usize],
        as_file: bool,
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut checked = Checked::new(base_len, as_file);
        for op in ops {
            checked.apply(op);
            checked.check();
        }
        checked.check_extents();
        checked.reopen();
        checked.check();
    }
}
