//! The disk layer alone: a copy-on-write disk over an image, saved twice while it is in use.
//!
//! Run with `cargo run -p examples --example disk_only`.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use cow_disk::{Base, BlockDevice, FrozenView, LayeredDisk, Overlay};

const DISK_BYTES: u64 = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let mut out = io::stdout().lock();

    // An image, and an empty layer above it. The disk is larger than its image.
    let image = dir.path().join("image.raw");
    std::fs::write(&image, b"a file system would be here")?;
    let base = Base::file(File::open(&image)?)?;
    let disk = LayeredDisk::new(base.clone(), Vec::new(), new_layer(dir.path(), 1)?)?;

    // The guest works; then everything it wrote is frozen at one instant.
    disk.write_at(1 << 20, b"version 1")?;
    let first = disk.freeze(new_layer(dir.path(), 2)?)?;
    disk.write_at(1 << 20, b"version 2")?;
    disk.discard(0, 4096)?;
    disk.flush()?;
    let second = disk.freeze(new_layer(dir.path(), 3)?)?;
    for (name, view) in [("first", &first), ("second", &second)] {
        let text = read_text(view)?;
        let changed: u64 = view.changed_extents().iter().map(|e| e.len_bytes).sum();
        writeln!(out, "{name} view: {text:?}, {changed} bytes changed")?;
    }

    // A branch: another disk that starts from the first view and shares its layers.
    let branch_base = Base::reader(Arc::new(first));
    let branch = LayeredDisk::new(branch_base, Vec::new(), new_layer(dir.path(), 4)?)?;
    branch.write_at((1 << 20) + 8, b"1b")?;
    let mut text = [0; 10];
    branch.read_at(1 << 20, &mut text)?;
    writeln!(out, "branch: {:?}", String::from_utf8_lossy(&text))?;

    // The sealed layers become one; what is on the disk stays the same.
    let into = new_layer(dir.path(), 5)?;
    let done = disk.flatten(second.newest().id(), into, &mut |_, _| {
        ControlFlow::Continue(())
    })?;
    writeln!(
        out,
        "{} layers became one of {} bytes",
        done.replaced.len(),
        done.merged.stored_bytes()?
    )?;

    // Another process would open the disk like this.
    drop(disk);
    let paths = [layer_path(dir.path(), 5)];
    let reopened = LayeredDisk::from_paths(base, &paths, layer_path(dir.path(), 3))?;
    let mut text = [0; 9];
    reopened.read_at(1 << 20, &mut text)?;
    writeln!(out, "reopened: {:?}", String::from_utf8_lossy(&text))?;
    Ok(())
}

fn layer_path(dir: &Path, number: u32) -> std::path::PathBuf {
    dir.join(format!("{number}.overlay"))
}

fn new_layer(dir: &Path, number: u32) -> Result<Overlay, Box<dyn Error>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(layer_path(dir, number))?;
    Ok(Overlay::create(file, DISK_BYTES)?)
}

fn read_text(view: &FrozenView) -> Result<String, Box<dyn Error>> {
    let mut text = [0; 9];
    view.read_at(1 << 20, &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
