//! From paths to inodes, as the guest's kernel goes.

use super::{DiskReader, FileSystem, FileSystemError, Inode, Kind};

/// Symbolic links on the way, as Linux has it.
const MAX_LINKS: usize = 40;
/// Components that are left to go at once; links add theirs.
const MAX_COMPONENTS: usize = 8192;
/// Directories inside each other on the way.
const MAX_DEPTH: usize = 4096;

impl<D: DiskReader> FileSystem<D> {
    /// The inode that a path leads to, from the root directory. Links on the way are followed, inside this file system; one
    /// at its end is not, unless a slash follows.
    ///
    /// # Errors
    /// There is nothing there.
    pub fn resolve(&self, path: &[u8]) -> Result<Inode, FileSystemError> {
        let mut at = vec![self.root()?];
        let mut left = Vec::new();
        push(&mut left, path)?;
        let follow_last = path.ends_with(b"/") || path.ends_with(b"/.");
        let mut links = 0;
        while let Some(component) = left.pop() {
            let Some(directory) = at.last() else { break };
            if directory.kind != Kind::Directory {
                return Err(FileSystemError::NotADirectory);
            }
            match &*component {
                b"." => continue,
                b".." => {
                    at.truncate(at.len().saturating_sub(1).max(1));
                    continue;
                }
                _ => {}
            }
            let inode = self.inode(self.look_up(directory, &component)?)?;
            if inode.kind != Kind::Symlink || (left.is_empty() && !follow_last) {
                if at.len() == MAX_DEPTH {
                    return Err(FileSystemError::damaged("the depth of a directory"));
                }
                at.push(inode);
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(FileSystemError::TooManyLinks);
            }
            let target = self.target(&inode)?;
            if target.starts_with(b"/") {
                at.truncate(1);
            }
            push(&mut left, &target)?;
        }
        let found = at.pop().ok_or(FileSystemError::NotFound)?;
        match follow_last && found.kind != Kind::Directory {
            true => Err(FileSystemError::NotADirectory),
            false => Ok(found),
        }
    }
}

/// Puts a path's components onto what is left to go, the first one on top.
fn push(left: &mut Vec<Box<[u8]>>, path: &[u8]) -> Result<(), FileSystemError> {
    let components = path.rsplit(|byte| *byte == b'/');
    left.extend(components.filter(|name| !name.is_empty()).map(Box::from));
    match left.len() > MAX_COMPONENTS {
        true => Err(FileSystemError::TooManyLinks),
        false => Ok(()),
    }
}
