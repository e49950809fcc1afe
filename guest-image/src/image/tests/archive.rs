//! Tar archives for tests, byte by byte.

/// Builds a pax archive. Changes apply to the entry added last.
#[derive(Default)]
pub(super) struct TarBuilder {
    entries: Vec<Entry>,
}

struct Entry {
    path: String,
    kind: u8,
    link: String,
    mode: u32,
    owner: (u32, u32),
    mtime: u64,
    device: (u32, u32),
    xattrs: Vec<(String, Vec<u8>)>,
    content: Vec<u8>,
}

/// An archive with an empty file.
pub(super) fn one_file() -> Vec<u8> {
    let mut tar = TarBuilder::default();
    tar.file("file", b"").finish()
}

impl TarBuilder {
    pub(super) fn file(&mut self, path: &str, content: &[u8]) -> &mut Self {
        self.push(path, b'0', "", content)
    }

    pub(super) fn dir(&mut self, path: &str, mode: u32) -> &mut Self {
        self.push(path, b'5', "", &[]).mode(mode)
    }

    pub(super) fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        self.push(path, b'2', target, &[])
    }

    pub(super) fn hard_link(&mut self, path: &str, target: &str) -> &mut Self {
        self.push(path, b'1', target, &[])
    }

    pub(super) fn device(&mut self, path: &str, kind: u8, major: u32, minor: u32) -> &mut Self {
        self.push(path, kind, "", &[]);
        self.last().device = (major, minor);
        self
    }

    pub(super) fn mode(&mut self, mode: u32) -> &mut Self {
        self.last().mode = mode;
        self
    }

    pub(super) fn owner(&mut self, uid: u32, gid: u32) -> &mut Self {
        self.last().owner = (uid, gid);
        self
    }

    pub(super) fn mtime(&mut self, seconds: u64) -> &mut Self {
        self.last().mtime = seconds;
        self
    }

    pub(super) fn xattr(&mut self, name: &str, value: &[u8]) -> &mut Self {
        self.last().xattrs.push((name.into(), value.into()));
        self
    }

    /// The archive with its end marker.
    pub(super) fn finish(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for entry in &self.entries {
            entry.write(&mut out);
        }
        out.resize(out.len() + 1024, 0);
        out
    }

    fn push(&mut self, path: &str, kind: u8, link: &str, content: &[u8]) -> &mut Self {
        self.entries.push(Entry {
            path: path.into(),
            kind,
            link: link.into(),
            mode: 0o644,
            owner: (0, 0),
            mtime: 1_000_000_000,
            device: (0, 0),
            xattrs: Vec::new(),
            content: content.into(),
        });
        self
    }

    fn last(&mut self) -> &mut Entry {
        self.entries.last_mut().unwrap()
    }
}

impl Entry {
    fn write(&self, out: &mut Vec<u8>) {
        let mut pax = Vec::new();
        for (key, value) in [("path", &self.path), ("linkpath", &self.link)] {
            if value.len() > 100 {
                pax.extend(pax_record(key, value.as_bytes()));
            }
        }
        for (name, value) in &self.xattrs {
            pax.extend(pax_record(&format!("SCHILY.xattr.{name}"), value));
        }
        if !pax.is_empty() {
            self.record(out, b'x', "pax", pax.len());
            append(out, &pax);
        }
        self.record(out, self.kind, &self.path, self.content.len());
        append(out, &self.content);
    }

    fn record(&self, out: &mut Vec<u8>, kind: u8, path: &str, size: usize) {
        let mut header = [0; 512];
        let mut put = |at: usize, text: &str, most: usize| {
            let bytes = &text.as_bytes()[..text.len().min(most)];
            header[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, path, 100);
        put(100, &format!("{:07o}", self.mode), 8);
        put(108, &format!("{:07o}", self.owner.0), 8);
        put(116, &format!("{:07o}", self.owner.1), 8);
        put(124, &format!("{size:011o}"), 12);
        put(136, &format!("{:011o}", self.mtime), 12);
        put(148, "        ", 8);
        put(157, &self.link, 100);
        put(257, "ustar\x0000", 8);
        put(329, &format!("{:07o}", self.device.0), 8);
        put(337, &format!("{:07o}", self.device.1), 8);
        header[156] = kind;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(&header);
    }
}

/// `LENGTH KEY=VALUE\n`, the length counting itself.
fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    [format!("{len} {key}=").as_bytes(), value, b"\n"].concat()
}

fn append(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(512), 0);
}
