//! Users and groups by `/etc/passwd` and `/etc/group`, without the C library's name services.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes read of each of the two files; a longer one is used as far as that.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Supplementary groups that the kernel takes.
const MAX_GROUPS: usize = 65_536;

/// Who a command runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Supplementary groups, `gid` among them.
    pub(crate) groups: Vec<u32>,
    /// Name if the number is known, else the number.
    pub(crate) name: String,
    pub(crate) home: String,
    pub(crate) shell: String,
}

/// The user and group files of a system.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    passwd: String,
    group: String,
}

struct Account<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
    shell: &'a str,
}

impl Accounts {
    /// Reads both files under `etc`; a missing file is an empty one.
    pub(crate) fn load(etc: &Path) -> io::Result<Self> {
        Ok(Self {
            passwd: read(&etc.join("passwd"))?,
            group: read(&etc.join("group"))?,
        })
    }

    fn accounts(&self) -> impl Iterator<Item = Account<'_>> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, _) = (fields.next()?, fields.next()?);
            let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            let (_, home) = (fields.next()?, fields.next()?);
            Some(Account {
                name,
                uid,
                gid,
                home,
                shell: fields.next().unwrap_or(""),
            })
        })
    }

    /// Name, number and members of each group.
    fn groups(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, _) = (fields.next()?, fields.next()?);
            Some((
                name,
                fields.next()?.parse().ok()?,
                fields.next().unwrap_or(""),
            ))
        })
    }

    /// The user that `text` (`NAME` or `UID`, with `:GROUP` or `:GID`) means; `None` if a name in
    /// it is not known. A number need not be known.
    pub(crate) fn find(&self, text: &str) -> Option<User> {
        let (who, group) = match text.split_once(':') {
            Some((who, group)) => (who, Some(group)),
            None => (text, None),
        };
        let mut user = match self.accounts().find(|account| account.name == who) {
            Some(account) => self.user(&account),
            None => self.by_uid(who.parse().ok()?),
        };
        if let Some(group) = group {
            let known = self.groups().find(|(name, ..)| *name == group);
            user.gid = known.map_or_else(|| group.parse().ok(), |(_, gid, _)| Some(gid))?;
            // A group asked for stands alone, as with other runtimes.
            user.groups = vec![user.gid];
        }
        Some(user)
    }

    /// The user with that number, known or not.
    pub(crate) fn by_uid(&self, uid: u32) -> User {
        match self.accounts().find(|account| account.uid == uid) {
            Some(account) => self.user(&account),
            None => User {
                uid,
                gid: if uid == 0 { 0 } else { uid },
                groups: vec![uid],
                name: uid.to_string(),
                home: if uid == 0 { "/root" } else { "/" }.into(),
                shell: "/bin/sh".into(),
            },
        }
    }

    fn user(&self, account: &Account<'_>) -> User {
        let mut groups = vec![account.gid];
        for (_, gid, members) in self.groups() {
            let member = members.split(',').any(|member| member == account.name);
            if member && !groups.contains(&gid) && groups.len() < MAX_GROUPS {
                groups.push(gid);
            }
        }
        let or =
            |text: &str, default: &str| if text.is_empty() { default } else { text }.to_owned();
        User {
            uid: account.uid,
            gid: account.gid,
            groups,
            name: account.name.to_owned(),
            home: or(account.home, "/"),
            shell: or(account.shell, "/bin/sh"),
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/bash\nbroken\nana:x:1000:100::/home/ana:\n".into(),
            group: "root:x:0:\nusers:x:100:\nkvm:x:104:bob,ana\nsudo:x:27:ana\n".into(),
        }
    }

    #[test]
    fn names_numbers_and_groups() {
        let ana = accounts().find("ana").expect("known");
        assert_eq!(
            (ana.uid, ana.gid, ana.groups.as_slice()),
            (1000, 100, &[100, 104, 27][..])
        );
        assert_eq!(
            (ana.home.as_str(), ana.shell.as_str()),
            ("/home/ana", "/bin/sh")
        );
        assert_eq!(accounts().find("1000"), accounts().find("ana"));
        let with_group = accounts().find("ana:kvm").expect("known");
        assert_eq!(
            (with_group.gid, with_group.groups.as_slice()),
            (104, &[104][..])
        );
        let stranger = accounts().find("4242:77").expect("a number is enough");
        assert_eq!((stranger.uid, stranger.gid), (4242, 77));
        assert_eq!(
            (stranger.home.as_str(), stranger.name.as_str()),
            ("/", "4242")
        );
        for unknown in ["bob", "ana:nogroup", "", "-1", "ana:"] {
            assert_eq!(accounts().find(unknown), None, "{unknown}");
        }
    }
}
