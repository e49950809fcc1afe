//! File systems made by [`super::ext4`], judged by e2fsprogs.

use std::io::{self, Write};

use super::contents::{Contents, Whiteouts};
use super::ext4::Ext4Image;
use crate::progress::{Phase, Silent};

#[test]
#[ignore = "dev aid"]
fn dev_tar_to_image() {
    let contents_dir = std::env::temp_dir();
    let mut contents = Contents::new(&contents_dir).unwrap();
    let input = std::fs::File::open(std::env::var("TAR").unwrap()).unwrap();
    let phase = Phase::begin(&Silent, "x", None);
    contents
        .add_tar(io::BufReader::new(input), "x", Whiteouts::Keep, &phase)
        .unwrap();
    let image = Ext4Image::new(&mut contents.tree, &contents.spool).unwrap();
    let mut out = std::fs::File::create(std::env::var("IMG").unwrap()).unwrap();
    image
        .for_each_chunk(65536, |chunk| match chunk {
            Some(bytes) => out.write_all(bytes),
            None => io::Seek::seek_relative(&mut out, 65536),
        })
        .unwrap();
    out.set_len(image.size_bytes()).unwrap();
}
