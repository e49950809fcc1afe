//! The file tree of an image, held in memory and never on the host.
//!
//! Archives are applied to this tree, not to a directory: no name in an
//! archive ever reaches a host path, symbolic links are followed only inside
//! the tree, and owners, modes and devices need no privilege.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ext4;
use super::spool::{Content, Run};
use crate::budget::{Budget, BudgetError};
use resolve::{Resolved, split};

mod resolve;

/// Most entries (names) a tree may hold.
pub(crate) const MAX_ENTRIES: usize = 1_000_000;
/// Longest file name in bytes (`NAME_MAX`).
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// Longest path of an entry in bytes (`PATH_MAX`).
pub(crate) const MAX_PATH_BYTES: usize = 4096;
/// Longest target of a symbolic link in bytes: what fits ext4's one block.
pub(crate) const MAX_SYMLINK_BYTES: usize = 4095;

/// Memory that a node costs besides what it points to: itself, and in the
/// writer its inode, its slot and a segment.
const NODE_BYTES: usize = size_of::<Node>() + 384;
/// Memory that a name costs besides its bytes, in its map.
const NAME_BYTES: usize = 64;
/// Memory that an attribute costs besides its bytes.
const ATTRIBUTE_BYTES: usize = 96;

/// Index of a node in its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(u32);

impl NodeId {
    /// The root directory.
    pub(crate) const ROOT: Self = Self(0);

    /// The index as a number below [`Tree::node_count`].
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A point in time as files carry it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp {
    /// Seconds since 1970.
    pub(crate) seconds: i64,
    /// Nanoseconds, below 10^9.
    pub(crate) nanoseconds: u32,
}

/// Extended attributes by full name (`security.capability`).
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What every kind of file has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Permission bits including set-uid, set-gid and sticky (0o7777).
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Timestamp,
    pub(crate) xattrs: Xattrs,
}

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// What a node is.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Dir(BTreeMap<Vec<u8>, NodeId>),
    File(Content),
    Symlink(Vec<u8>),
    Char(Device),
    Block(Device),
    Fifo,
    Socket,
}

/// A file, directory, link or device. Hard links are several names of one
/// node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) meta: Meta,
    pub(crate) kind: Kind,
    /// The layer that made this node.
    born: u32,
    /// The last layer that wrote this node or something below it.
    layer: u32,
    /// The last layer from which on nothing older is in this directory.
    pruned: u32,
}

/// Why an entry does not fit into the tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The path climbs out with `..`.
    #[error("its path contains `..`")]
    Traversal,
    /// A name or path is longer than Linux allows, or holds a NUL byte.
    #[error("its path is not a valid Linux path")]
    BadPath,
    /// A parent is a file.
    #[error("a parent of it is not a directory")]
    ParentNotDirectory,
    /// Symbolic links lead in a circle.
    #[error("too many symbolic links in its path")]
    LinkLoop,
    /// The target of a hard link is absent or a directory.
    #[error("the target of this hard link is missing or a directory")]
    BadHardLink,
    /// A symbolic link's target is empty or too long.
    #[error("the target of this symbolic link is empty or longer than 4095 bytes")]
    BadSymlink,
    /// A directory would be replaced by something else, or the root removed.
    #[error("it would replace the root directory")]
    ReplacesRoot,
    /// The tree has as many names as it may.
    #[error("more than 1000000 files")]
    TooManyEntries,
    /// The import would cost too much.
    #[error(transparent)]
    Budget(#[from] BudgetError),
}

/// A file tree.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    names: usize,
    layer: u32,
    budget: Arc<Budget>,
}

impl Node {
    /// What the import holds for it.
    fn cost_bytes(&self) -> usize {
        let attributes: usize = self
            .meta
            .xattrs
            .iter()
            .map(|(name, value)| ATTRIBUTE_BYTES + name.len() + value.len())
            .sum();
        let block = ext4::attribute_block_bytes(&self.meta.xattrs);
        let kind = match &self.kind {
            Kind::Symlink(target) => target.len() + ext4::symlink_block_bytes(target),
            // A vector has room for up to twice of what it holds.
            Kind::File(content) => 2 * content.runs.len() * size_of::<Run>(),
            _ => 0,
        };
        NODE_BYTES + attributes + block + kind
    }
}

impl Tree {
    /// A tree with an empty root directory, which `budget` pays for.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let meta = Meta {
            mode: 0o755,
            ..Meta::default()
        };
        let root = Node {
            meta,
            kind: Kind::Dir(BTreeMap::new()),
            born: 0,
            layer: 0,
            pruned: 0,
        };
        Self {
            nodes: vec![root],
            names: 0,
            layer: 0,
            budget,
        }
    }

    /// What pays for the import.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Begins the next layer: whiteouts then remove what earlier layers made.
    pub(crate) fn next_layer(&mut self) {
        self.layer += 1;
    }

    /// The node of an id.
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Nodes ever made, including removed ones; ids are below it.
    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The newest modification time of all nodes.
    pub(crate) fn newest(&self) -> Timestamp {
        self.nodes
            .iter()
            .map(|node| node.meta.mtime)
            .max()
            .unwrap_or_default()
    }

    /// The names in a directory; `None` for anything else.
    pub(crate) fn children(&self, id: NodeId) -> Option<&BTreeMap<Vec<u8>, NodeId>> {
        match &self.node(id).kind {
            Kind::Dir(children) => Some(children),
            _ => None,
        }
    }

    /// Whether a node is a regular file without contents.
    pub(crate) fn is_empty_file(&self, id: NodeId) -> bool {
        matches!(&self.node(id).kind, Kind::File(content) if content.size_bytes == 0)
    }

    /// Looks a path up without following a final symbolic link.
    pub(crate) fn lookup(&self, path: &[u8]) -> Option<NodeId> {
        let components = split(path).ok()?;
        let Some((name, parents)) = components.split_last() else {
            return Some(NodeId::ROOT);
        };
        let parent = self.resolve(parents).ok()?.existing?;
        self.children(parent)?.get(*name).copied()
    }

    /// Makes a directory and its missing parents (root's, 0755), following links.
    pub(crate) fn make_directory(&mut self, path: &[u8]) -> Result<(), TreeError> {
        let components = split(path)?;
        self.make_dirs(&components).map(drop)
    }

    /// Puts a node at `path`, making missing parents (root's, 0755). A
    /// directory put over a directory keeps its contents; everything else
    /// replaces what was there.
    pub(crate) fn insert(&mut self, path: &[u8], meta: Meta, kind: Kind) -> Result<(), TreeError> {
        if let Kind::Symlink(target) = &kind
            && (target.is_empty() || target.len() > MAX_SYMLINK_BYTES || target.contains(&0))
        {
            return Err(TreeError::BadSymlink);
        }
        let components = split(path)?;
        let Some((name, parents)) = components.split_last() else {
            return self.set_root(meta, &kind);
        };
        let parent = self.make_dirs(parents)?;
        if let (Kind::Dir(_), Some(old)) = (&kind, self.child(parent, name))
            && self.children(old).is_some()
        {
            let layer = self.layer;
            let old = &mut self.nodes[old.index()];
            old.meta = meta;
            old.layer = layer;
            return Ok(());
        }
        let id = self.push(meta, kind)?;
        self.link(parent, name.to_vec(), id)
    }

    /// Makes `path` another name of the file at `target`.
    pub(crate) fn hard_link(&mut self, path: &[u8], target: &[u8]) -> Result<(), TreeError> {
        split(target)?;
        let id = self.lookup(target).ok_or(TreeError::BadHardLink)?;
        if self.children(id).is_some() {
            return Err(TreeError::BadHardLink);
        }
        let components = split(path)?;
        let Some((name, parents)) = components.split_last() else {
            return Err(TreeError::ReplacesRoot);
        };
        let parent = self.make_dirs(parents)?;
        self.link(parent, name.to_vec(), id)
    }

    /// A whiteout: removes what earlier layers put at `path`.
    pub(crate) fn whiteout(&mut self, path: &[u8]) -> Result<(), TreeError> {
        let components = split(path)?;
        let Some((name, parents)) = components.split_last() else {
            return Err(TreeError::ReplacesRoot);
        };
        let Some(id) = self.older(parents, name)? else {
            return Ok(());
        };
        let (parent, id) = id;
        if self.node(id).layer < self.layer {
            self.unlink(parent, name);
        } else {
            self.prune(id)?;
        }
        Ok(())
    }

    /// An opaque whiteout: removes what earlier layers put into the directory
    /// at `path`. A symbolic link in its place is none.
    pub(crate) fn opaque(&mut self, path: &[u8]) -> Result<(), TreeError> {
        let components = split(path)?;
        let Some((name, parents)) = components.split_last() else {
            return self.prune(NodeId::ROOT);
        };
        if let Some((_, id)) = self.older(parents, name)? {
            self.prune(id)?;
        }
        Ok(())
    }

    /// The directory and the node of a name, if earlier layers led there.
    ///
    /// A layer's whiteouts speak of what was there before it. What this layer
    /// made itself on the way, as a link in place of a directory, hides all of
    /// that, and must not lead a whiteout to somebody else's files.
    fn older(&self, parents: &[&[u8]], name: &[u8]) -> Result<Option<(NodeId, NodeId)>, TreeError> {
        let resolved = match self.resolve(parents) {
            // A file that this layer put in place of a directory.
            Err(TreeError::ParentNotDirectory) => return Ok(None),
            result => result?,
        };
        let parent = resolved.existing.filter(|_| !resolved.through_new);
        Ok(parent.and_then(|parent| Some((parent, self.child(parent, name)?))))
    }

    /// Takes one name out of a directory, whatever it names.
    pub(crate) fn remove(&mut self, path: &[u8]) -> bool {
        let Ok(components) = split(path) else {
            return false;
        };
        let Some((name, parents)) = components.split_last() else {
            return false;
        };
        let Ok(Resolved {
            existing: Some(parent),
            ..
        }) = self.resolve(parents)
        else {
            return false;
        };
        self.unlink(parent, name)
    }

    /// Removes everything in the directory `top` that only earlier layers
    /// wrote.
    fn prune(&mut self, top: NodeId) -> Result<(), TreeError> {
        let layer = self.layer;
        let mut todo = vec![top];
        while let Some(dir) = todo.pop() {
            // Once for each layer: what comes later is not older.
            if self.node(dir).pruned == layer {
                continue;
            }
            self.nodes[dir.index()].pruned = layer;
            let Some(children) = self.children(dir) else {
                continue;
            };
            self.budget.work(children.len())?;
            let (old, new): (Vec<_>, Vec<_>) = children
                .iter()
                .partition(|(_, id)| self.node(**id).layer < layer);
            let old: Vec<Vec<u8>> = old.into_iter().map(|(name, _)| name.clone()).collect();
            todo.extend(new.into_iter().map(|(_, id)| *id));
            for name in old {
                self.unlink(dir, &name);
            }
        }
        Ok(())
    }

    fn set_root(&mut self, meta: Meta, kind: &Kind) -> Result<(), TreeError> {
        if !matches!(kind, Kind::Dir(_)) {
            return Err(TreeError::ReplacesRoot);
        }
        self.nodes[0].meta = meta;
        Ok(())
    }

    fn child(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        self.children(dir)?.get(name).copied()
    }

    fn push(&mut self, meta: Meta, kind: Kind) -> Result<NodeId, TreeError> {
        let node = Node {
            meta,
            kind,
            born: self.layer,
            layer: self.layer,
            pruned: 0,
        };
        self.budget.hold(node.cost_bytes())?;
        // Replaced nodes stay in the arena, so that it is bounded as well.
        if self.nodes.len() > 2 * MAX_ENTRIES {
            return Err(TreeError::TooManyEntries);
        }
        let id = u32::try_from(self.nodes.len()).map_err(|_| TreeError::TooManyEntries)?;
        self.nodes.push(node);
        Ok(NodeId(id))
    }

    fn link(&mut self, dir: NodeId, name: Vec<u8>, id: NodeId) -> Result<(), TreeError> {
        if self.names >= MAX_ENTRIES {
            return Err(TreeError::TooManyEntries);
        }
        // Also the writer holds it, while it encodes the directory.
        self.budget.hold(NAME_BYTES + 2 * name.len())?;
        if let Kind::Dir(children) = &mut self.nodes[dir.index()].kind
            && children.insert(name, id).is_none()
        {
            self.names += 1;
        }
        Ok(())
    }

    fn unlink(&mut self, dir: NodeId, name: &[u8]) -> bool {
        let Kind::Dir(children) = &mut self.nodes[dir.index()].kind else {
            return false;
        };
        let found = children.remove(name).is_some();
        self.names -= usize::from(found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Limits;

    fn dir() -> Kind {
        Kind::Dir(BTreeMap::new())
    }

    fn put(tree: &mut Tree, path: &str) -> Result<(), TreeError> {
        tree.insert(path.as_bytes(), Meta::default(), Kind::Fifo)
    }

    fn link(tree: &mut Tree, path: &str, target: &str) {
        tree.insert(
            path.as_bytes(),
            Meta::default(),
            Kind::Symlink(target.into()),
        )
        .unwrap();
    }

    fn has(tree: &Tree, path: &str) -> bool {
        tree.lookup(path.as_bytes()).is_some()
    }

    #[test]
    fn refuses_paths_that_leave_the_tree() {
        let mut tree = Tree::new(Budget::new(Limits::default()));
        assert_eq!(put(&mut tree, "../x"), Err(TreeError::Traversal));
        assert_eq!(put(&mut tree, "a/../../x"), Err(TreeError::Traversal));
        assert_eq!(put(&mut tree, &"n".repeat(256)), Err(TreeError::BadPath));
        assert_eq!(put(&mut tree, "a\0b"), Err(TreeError::BadPath));
        assert_eq!(put(&mut tree, "/"), Err(TreeError::ReplacesRoot));
    }

    #[test]
    fn links_are_followed_inside_the_tree_only() {
        let mut tree = Tree::new(Budget::new(Limits::default()));
        link(&mut tree, "lib", "../../usr/lib");
        put(&mut tree, "lib/x").unwrap();
        assert!(has(&tree, "usr/lib/x"));
        link(&mut tree, "a", "b");
        link(&mut tree, "b", "a");
        assert_eq!(put(&mut tree, "a/x"), Err(TreeError::LinkLoop));
        put(&mut tree, "file").unwrap();
        assert_eq!(put(&mut tree, "file/x"), Err(TreeError::ParentNotDirectory));
    }

    #[test]
    fn hard_links_name_one_node() {
        let mut tree = Tree::new(Budget::new(Limits::default()));
        put(&mut tree, "a").unwrap();
        tree.hard_link(b"d/b", b"a").unwrap();
        assert_eq!(tree.lookup(b"a"), tree.lookup(b"d/b"));
        assert_eq!(tree.hard_link(b"c", b"d"), Err(TreeError::BadHardLink));
        assert_eq!(
            tree.hard_link(b"c", b"nothing"),
            Err(TreeError::BadHardLink)
        );
    }

    #[test]
    fn whiteouts_spare_their_own_layer() {
        let mut tree = Tree::new(Budget::new(Limits::default()));
        for path in ["d/old", "d/sub/old", "e/old", "gone/x"] {
            put(&mut tree, path).unwrap();
        }
        tree.next_layer();
        put(&mut tree, "d/sub/new").unwrap();
        tree.opaque(b"d").unwrap();
        tree.whiteout(b"e/old").unwrap();
        tree.whiteout(b"gone").unwrap();
        tree.whiteout(b"never").unwrap();
        assert!(!has(&tree, "d/old") && !has(&tree, "d/sub/old") && has(&tree, "d/sub/new"));
        assert!(has(&tree, "e") && !has(&tree, "e/old") && !has(&tree, "gone"));
    }

    #[test]
    fn a_whiteout_does_not_follow_what_its_own_layer_made() {
        let mut tree = Tree::new(Budget::new(Limits::default()));
        for path in ["a/f", "b/f", "c/f", "usr/lib/x"] {
            put(&mut tree, path).unwrap();
        }
        link(&mut tree, "lib", "usr/lib");
        tree.next_layer();
        link(&mut tree, "a", "/b");
        put(&mut tree, "c").unwrap();
        for path in ["a/f", "c/f", "lib/x"] {
            tree.whiteout(path.as_bytes()).unwrap();
        }
        tree.opaque(b"a").unwrap();
        assert!(has(&tree, "b/f"), "through a link that the layer made");
        assert!(!has(&tree, "usr/lib/x"), "through one that was there");
        tree.next_layer();
        tree.opaque(b"a").unwrap();
        assert!(has(&tree, "b/f"), "a link is no opaque directory");
    }

    #[test]
    fn an_opaque_mark_that_is_repeated_costs_nothing() {
        let limits = Limits::default().with_steps(100_000);
        let mut tree = Tree::new(Budget::new(limits));
        tree.next_layer();
        for number in 0..1_000 {
            put(&mut tree, &format!("d/{number}")).unwrap();
        }
        tree.next_layer();
        for number in 0..5_000 {
            put(&mut tree, &format!("d/new{number}")).unwrap();
            tree.opaque(b"d").unwrap();
        }
        let top = tree.lookup(b"d").unwrap();
        assert_eq!(tree.children(top).unwrap().len(), 5_000);
    }

    #[test]
    fn directories_merge_and_files_replace() {
        let mut tree = Tree::new(Budget::new(Limits::default()));
        put(&mut tree, "d/x").unwrap();
        tree.insert(
            b"d",
            Meta {
                mode: 0o700,
                ..Meta::default()
            },
            dir(),
        )
        .unwrap();
        assert!(has(&tree, "d/x"));
        put(&mut tree, "d").unwrap();
        assert!(!has(&tree, "d/x"));
        tree.insert(b"d", Meta::default(), dir()).unwrap();
        assert!(
            tree.children(tree.lookup(b"d").unwrap())
                .unwrap()
                .is_empty()
        );
    }
}
