//! Files of a point as the stream of items that a guest's agent would send: whoever receives it need not know the difference.

use std::collections::HashMap;
use std::ops::ControlFlow;

use agent_protocol::codec::Bytes;
use agent_protocol::frame::MAX_DATA_BYTES;
use agent_protocol::tree::{
    MAX_DEPTH, MAX_LINKED_FILES, Metadata, ReceiveError, SpecialKind, TreeItem, TreeReceiver,
};
use guest_image::file_system::{DiskReader, Entry, FileSystem, FileSystemError, Inode, Kind};

use super::shown;
use super::walk::{Listed, Walk};
use crate::error_chain::chain;

/// Why files were not copied, or not all.
#[derive(Debug)]
pub(crate) enum SendFailure {
    /// The point's side.
    Files(FileSystemError),
    /// This host's side.
    Receive(ReceiveError),
}

impl From<FileSystemError> for SendFailure {
    fn from(error: FileSystemError) -> Self {
        Self::Files(error)
    }
}

impl From<ReceiveError> for SendFailure {
    fn from(error: ReceiveError) -> Self {
        Self::Receive(error)
    }
}

/// Copies what `root` is, with everything below it. What cannot be read below it is a problem in the receiver's report. `advance` is
/// told the bytes and may end it.
pub(crate) fn send_files<D: DiskReader>(
    files: &FileSystem<D>,
    root: &Inode,
    receiver: &mut TreeReceiver,
    advance: &dyn Fn(u64) -> ControlFlow<()>,
) -> Result<(), SendFailure> {
    let mut sender = Sender {
        files,
        receiver,
        advance,
        walk: Walk::default(),
        links: HashMap::new(),
        next_link: 0,
        stack: Vec::new(),
    };
    sender.entry(root, b"")?;
    sender.below()?;
    sender.item(TreeItem::End)
}

struct Sender<'a, D> {
    files: &'a FileSystem<D>,
    receiver: &'a mut TreeReceiver,
    advance: &'a dyn Fn(u64) -> ControlFlow<()>,
    walk: Walk,
    /// Number of each file with several names that was sent.
    links: HashMap<u32, u64>,
    next_link: u64,
    /// Directories that are not done.
    stack: Vec<Listed>,
}

impl<D: DiskReader> Sender<'_, D> {
    fn item(&mut self, item: TreeItem) -> Result<(), SendFailure> {
        self.receiver.apply(item)?;
        Ok(())
    }

    fn advance(&self, bytes: u64) -> Result<(), SendFailure> {
        match (self.advance)(bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ReceiveError::Stopped.into()),
        }
    }

    fn below(&mut self) -> Result<(), SendFailure> {
        while let Some(level) = self.stack.last_mut() {
            let Some(Entry { name, inode }) = level.next() else {
                if let Some(level) = self.stack.pop() {
                    self.walk.leave(&level);
                }
                self.item(TreeItem::EndDirectory)?;
                continue;
            };
            self.advance(0)?;
            let sent = match self.files.inode(inode) {
                Ok(inode) => self.entry(&inode, &name),
                Err(error) => Err(error.into()),
            };
            match sent {
                Err(SendFailure::Files(error)) if !error.is_fatal() => {
                    let message = format!("{}: {}", shown(&name), chain(&error));
                    self.item(TreeItem::Problem { message })?;
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Sends an entry. An error of the point's side leaves the stream as it was before.
    fn entry(&mut self, inode: &Inode, name: &[u8]) -> Result<(), SendFailure> {
        let name = Bytes::from(name);
        let meta = metadata(inode);
        let special = |kind, (major, minor)| TreeItem::Special {
            name: name.clone(),
            meta,
            kind,
            major,
            minor,
        };
        let item = match inode.kind {
            Kind::File => return self.file(inode, name, meta),
            Kind::Directory => {
                if self.stack.len() >= MAX_DEPTH {
                    return Err(FileSystemError::Unsupported {
                        what: format!("more than {MAX_DEPTH} directories inside each other"),
                    }
                    .into());
                }
                let listed = self.walk.enter(self.files, inode)?;
                self.item(TreeItem::Directory { name, meta })?;
                self.stack.push(listed);
                return Ok(());
            }
            Kind::Symlink => TreeItem::Symlink {
                target: self.files.target(inode)?.into(),
                name,
                meta,
            },
            Kind::Socket => {
                let what = "a socket".to_owned();
                return Err(FileSystemError::Unsupported { what }.into());
            }
            Kind::Fifo => special(SpecialKind::Fifo, (0, 0)),
            Kind::CharacterDevice { major, minor } => {
                special(SpecialKind::CharacterDevice, (major, minor))
            }
            Kind::BlockDevice { major, minor } => special(SpecialKind::BlockDevice, (major, minor)),
        };
        self.item(item)
    }

    fn file(&mut self, inode: &Inode, name: Bytes, meta: Metadata) -> Result<(), SendFailure> {
        let mut link = None;
        if inode.links > 1 {
            if let Some(&link) = self.links.get(&inode.number) {
                return self.item(TreeItem::HardLink { name, link });
            }
            if self.links.len() < MAX_LINKED_FILES {
                self.links.insert(inode.number, self.next_link);
                link = Some(self.next_link);
                self.next_link += 1;
            }
        }
        self.item(TreeItem::File { name, meta, link })?;
        let end = match self.data(inode) {
            Ok(()) => TreeItem::FileEnd {
                size_bytes: inode.size_bytes,
            },
            Err(SendFailure::Files(error)) if !error.is_fatal() => {
                // Its other names are files of their own to the receiver, which has none to give them to.
                self.links.remove(&inode.number);
                TreeItem::FileBroken {
                    message: chain(&error),
                }
            }
            Err(error) => return Err(error),
        };
        self.item(end)
    }

    fn data(&mut self, inode: &Inode) -> Result<(), SendFailure> {
        for extent in self.files.extents(inode)? {
            let extent = extent?;
            let mut done = 0;
            while done < extent.length_bytes {
                let length = (extent.length_bytes - done).min(MAX_DATA_BYTES as u64);
                // At most `MAX_DATA_BYTES`.
                let mut data = vec![0; length as usize];
                self.files.read(&extent, done, &mut data)?;
                self.item(TreeItem::Data {
                    offset: extent.offset_bytes + done,
                    data: data.into(),
                })?;
                done += length;
                self.advance(length)?;
            }
        }
        Ok(())
    }
}

fn metadata(inode: &Inode) -> Metadata {
    Metadata {
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        mtime_seconds: inode.modified.seconds,
        mtime_nanos: inode.modified.nanos,
    }
}
