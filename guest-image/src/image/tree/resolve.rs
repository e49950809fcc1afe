//! Paths in a tree: where they lead, and making the directories on the way.

use std::collections::{BTreeMap, VecDeque};

use super::{Kind, MAX_NAME_BYTES, MAX_PATH_BYTES, Meta, NodeId, Tree, TreeError};

/// Symbolic links followed while one path is resolved, as in Linux.
const MAX_SYMLINK_HOPS: usize = 40;
/// Components waiting to be resolved at one time.
const MAX_PENDING_COMPONENTS: usize = 8192;

impl Tree {
    /// Resolves a directory path and makes what is missing; marks the way as
    /// written by the current layer.
    pub(super) fn make_dirs(&mut self, components: &[&[u8]]) -> Result<NodeId, TreeError> {
        let resolved = self.resolve(components)?;
        let mut at = *resolved.stack.last().unwrap_or(&NodeId::ROOT);
        for id in &resolved.stack {
            self.nodes[id.index()].layer = self.layer;
        }
        for name in resolved.missing {
            let meta = Meta {
                mode: 0o755,
                ..Meta::default()
            };
            let kind = Kind::Dir(BTreeMap::new());
            let id = self.push(meta, kind)?;
            self.link(at, name, id)?;
            at = id;
        }
        Ok(at)
    }

    /// Follows `components` as a process whose root is this tree would.
    pub(super) fn resolve(&self, components: &[&[u8]]) -> Result<Resolved, TreeError> {
        let mut todo: VecDeque<&[u8]> = components.iter().copied().collect();
        let mut stack = vec![NodeId::ROOT];
        let mut missing: Vec<Vec<u8>> = Vec::new();
        let mut hops = 0;
        let mut steps = 0;
        let mut through_new = false;
        while let Some(name) = todo.pop_front() {
            steps += 1;
            match name {
                b"" | b"." => continue,
                b".." => {
                    if missing.pop().is_none() && stack.len() > 1 {
                        stack.pop();
                    }
                    continue;
                }
                _ => {}
            }
            let at = *stack.last().unwrap_or(&NodeId::ROOT);
            let child = if missing.is_empty() {
                self.child(at, name)
            } else {
                None
            };
            let Some(id) = child else {
                missing.push(name.to_vec());
                continue;
            };
            through_new |= self.node(id).born == self.layer;
            match &self.node(id).kind {
                Kind::Dir(_) => stack.push(id),
                Kind::Symlink(target) => {
                    hops += 1;
                    let parts: Vec<&[u8]> = target.split(|b| *b == b'/').collect();
                    if hops > MAX_SYMLINK_HOPS || todo.len() + parts.len() > MAX_PENDING_COMPONENTS
                    {
                        return Err(TreeError::LinkLoop);
                    }
                    if target.starts_with(b"/") {
                        stack.truncate(1);
                    }
                    for part in parts.into_iter().rev() {
                        todo.push_front(part);
                    }
                }
                _ => return Err(TreeError::ParentNotDirectory),
            }
        }
        self.budget.work(steps)?;
        if missing.iter().any(|name| name.len() > MAX_NAME_BYTES) {
            return Err(TreeError::BadPath);
        }
        let existing = missing
            .is_empty()
            .then(|| *stack.last().unwrap_or(&NodeId::ROOT));
        Ok(Resolved {
            stack,
            missing,
            existing,
            through_new,
        })
    }
}

/// Where a directory path leads.
pub(super) struct Resolved {
    /// The directories passed, from the root to the deepest that exists.
    stack: Vec<NodeId>,
    /// Names below it that do not exist.
    missing: Vec<Vec<u8>>,
    /// The directory itself, if it exists.
    pub(super) existing: Option<NodeId>,
    /// Whether something that the current layer made lay on the way.
    pub(super) through_new: bool,
}

/// Splits an archive path into checked components. `/` and `.` are dropped.
pub(super) fn split(path: &[u8]) -> Result<Vec<&[u8]>, TreeError> {
    if path.len() > MAX_PATH_BYTES || path.contains(&0) {
        return Err(TreeError::BadPath);
    }
    let mut components = Vec::new();
    for part in path.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(TreeError::Traversal),
            _ if part.len() > MAX_NAME_BYTES => return Err(TreeError::BadPath),
            _ => components.push(part),
        }
    }
    Ok(components)
}
