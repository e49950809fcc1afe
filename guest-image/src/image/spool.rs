//! File contents on their way into an image.
//!
//! Contents are appended, block-aligned, to one unlinked temporary file; the
//! tree keeps where each piece lies. Nothing on the host is ever named after
//! anything in an archive.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Block size of the spool and of the file systems made from it, in bytes.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Largest file accepted, in bytes, holes included.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 30;
/// Most data spooled for one image, in bytes, holes excluded.
pub(crate) const MAX_SPOOL_BYTES: u64 = 256 << 30;
/// Most separate pieces of one file; further holes are filled. With the pieces
/// that block groups cut a file into, ext4's extent tree must hold them.
const MAX_RUNS: usize = 800;
/// Most bytes of holes that are filled for one image.
const MAX_FILLED_BYTES: u64 = 4 << 30;
/// Bytes moved at a time.
const COPY_BYTES: usize = 64 * BLOCK_BYTES;

/// Whole blocks of one file that lie together in the spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// First block within the file.
    pub(crate) logical: u64,
    /// First block within the spool.
    pub(crate) spool: u64,
    /// Number of blocks.
    pub(crate) blocks: u64,
}

/// The contents of a regular file: its size and the blocks that are not holes,
/// in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) size_bytes: u64,
    pub(crate) runs: Vec<Run>,
}

/// Contents on their way into a spool.
pub(crate) trait ContentReader: Read {
    /// How many zeros follow at least, as far as is known without reading;
    /// they are passed over, `most` of them if there are more.
    fn skip_hole(&mut self, _most: u64) -> io::Result<u64> {
        Ok(0)
    }
}

impl ContentReader for &[u8] {}
impl ContentReader for io::Repeat {}

/// A file of the host, whose holes are not read.
pub(crate) struct HostFile<'a> {
    file: &'a File,
    position: u64,
    size_bytes: u64,
}

impl<'a> HostFile<'a> {
    /// All `size_bytes` of `file`.
    pub(crate) fn new(file: &'a File, size_bytes: u64) -> Self {
        Self {
            file,
            position: 0,
            size_bytes,
        }
    }
}

impl Read for HostFile<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(buf, self.position)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl ContentReader for HostFile<'_> {
    fn skip_hole(&mut self, most: u64) -> io::Result<u64> {
        use rustix::fs::{SeekFrom, seek};
        use rustix::io::Errno;
        let data = match seek(self.file, SeekFrom::Data(self.position)) {
            Ok(data) => data,
            Err(Errno::NXIO) => self.size_bytes,
            // The file system does not say.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let hole = data.saturating_sub(self.position).min(most);
        self.position += hole;
        Ok(hole)
    }
}

/// An append-only temporary file of blocks.
pub(crate) struct Spool {
    file: File,
    blocks: u64,
    filled_blocks: u64,
    buffer: Vec<u8>,
}

impl Spool {
    /// Makes a spool on the file system of `dir`; it has no name.
    pub(crate) fn create_in(dir: &Path) -> io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile_in(dir)?,
            blocks: 0,
            filled_blocks: 0,
            buffer: vec![0; COPY_BYTES],
        })
    }

    /// Appends `size_bytes` bytes of `input`. With `punch`, blocks of zeros
    /// become holes, as in a file that was sparse at its source.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the input is shorter; `FileTooLarge` beyond
    /// [`MAX_FILE_BYTES`] and [`MAX_SPOOL_BYTES`].
    pub(crate) fn append(
        &mut self,
        input: &mut dyn ContentReader,
        size_bytes: u64,
        punch: bool,
    ) -> io::Result<Content> {
        if size_bytes > MAX_FILE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "file larger than 64 GiB",
            ));
        }
        let mut content = Content {
            size_bytes,
            runs: Vec::new(),
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.append_blocks(input, &mut buffer, punch, &mut content);
        self.buffer = buffer;
        result.map(|()| content)
    }

    fn append_blocks(
        &mut self,
        input: &mut dyn ContentReader,
        buffer: &mut [u8],
        punch: bool,
        content: &mut Content,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < content.size_bytes {
            // Only whole blocks can be passed over, so that the next piece begins with one.
            let blocks = (content.size_bytes - done) / BLOCK_BYTES as u64;
            if punch && content.runs.len() < MAX_RUNS && blocks > 0 {
                let hole = input.skip_hole(blocks * BLOCK_BYTES as u64)?;
                let rest = hole % BLOCK_BYTES as u64;
                done += hole - rest;
                if rest > 0 {
                    // The hole ends inside a block, whose beginning is zeros.
                    let rest = usize::try_from(rest).unwrap_or(0);
                    let left = usize::try_from(content.size_bytes - done).unwrap_or(usize::MAX);
                    let want = left.min(BLOCK_BYTES);
                    buffer[..rest].fill(0);
                    input.read_exact(&mut buffer[rest..want])?;
                    buffer[want..BLOCK_BYTES].fill(0);
                    let first = done / BLOCK_BYTES as u64;
                    self.append_piece(&buffer[..BLOCK_BYTES], first, punch, content)?;
                    done += want as u64;
                }
                if hole > 0 {
                    continue;
                }
            }
            let want = usize::try_from(content.size_bytes - done)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            input.read_exact(&mut buffer[..want])?;
            let padded = want.next_multiple_of(BLOCK_BYTES);
            buffer[want..padded].fill(0);
            let first = done / BLOCK_BYTES as u64;
            self.append_piece(&buffer[..padded], first, punch, content)?;
            done += want as u64;
        }
        Ok(())
    }

    /// Appends whole blocks, the first of which is block `logical` of its
    /// file, leaving out zeros if asked.
    fn append_piece(
        &mut self,
        bytes: &[u8],
        logical: u64,
        punch: bool,
        content: &mut Content,
    ) -> io::Result<()> {
        if !punch {
            return self.append_run(bytes, logical, content);
        }
        let is_hole = |block: &[u8]| block.iter().all(|b| *b == 0);
        let blocks: Vec<&[u8]> = bytes.chunks(BLOCK_BYTES).collect();
        let mut at = 0;
        for group in blocks.chunk_by(|a, b| is_hole(a) == is_hole(b)) {
            let hole = group.first().is_some_and(|block| is_hole(block));
            if hole && content.runs.len() >= MAX_RUNS {
                self.filled_blocks += group.len() as u64;
                if self.filled_blocks * BLOCK_BYTES as u64 > MAX_FILLED_BYTES {
                    let text = "sparse files in more pieces than ext4 has extents for";
                    return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
                }
            }
            if !hole || content.runs.len() >= MAX_RUNS {
                let range = at * BLOCK_BYTES..(at + group.len()) * BLOCK_BYTES;
                self.append_run(&bytes[range], logical + at as u64, content)?;
            }
            at += group.len();
        }
        Ok(())
    }

    fn append_run(&mut self, bytes: &[u8], logical: u64, content: &mut Content) -> io::Result<()> {
        let blocks = (bytes.len() / BLOCK_BYTES) as u64;
        if (self.blocks + blocks) * BLOCK_BYTES as u64 > MAX_SPOOL_BYTES {
            let text = "image contents larger than 256 GiB";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        self.file.write_all(bytes)?;
        match content.runs.last_mut() {
            Some(run)
                if run.logical + run.blocks == logical && run.spool + run.blocks == self.blocks =>
            {
                run.blocks += blocks;
            }
            _ => content.runs.push(Run {
                logical,
                spool: self.blocks,
                blocks,
            }),
        }
        self.blocks += blocks;
        Ok(())
    }

    /// Reads whole blocks back, from block `first` of the spool on.
    pub(crate) fn read_blocks(&self, first: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, first * BLOCK_BYTES as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_bytes_and_pads_the_last_block() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::create_in(dir.path()).unwrap();
        let content = spool.append(&mut &b"abc"[..], 3, false).unwrap();
        assert_eq!(
            content.runs,
            [Run {
                logical: 0,
                spool: 0,
                blocks: 1
            }]
        );
        let mut block = vec![1; BLOCK_BYTES];
        spool.read_blocks(0, &mut block).unwrap();
        assert!(block.starts_with(b"abc") && block[3..].iter().all(|b| *b == 0));
        assert!(spool.append(&mut &b"abc"[..], 4, false).is_err());
        assert!(
            spool
                .append(&mut io::repeat(0), MAX_FILE_BYTES + 1, true)
                .is_err()
        );
    }

    #[test]
    fn holes_take_no_space() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::create_in(dir.path()).unwrap();
        let mut bytes = vec![0u8; 200 * BLOCK_BYTES];
        bytes[100 * BLOCK_BYTES] = 1;
        let content = spool
            .append(&mut &bytes[..], bytes.len() as u64, true)
            .unwrap();
        assert_eq!(
            content.runs,
            [Run {
                logical: 100,
                spool: 0,
                blocks: 1
            }]
        );
        assert_eq!(content.size_bytes, bytes.len() as u64);
    }
}
