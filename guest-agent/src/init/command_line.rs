//! Options of the agent on the kernel's command line.

use std::fs;

use super::InitError;

/// What the kernel's command line says to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandLine {
    pub(super) root: String,
    pub(super) root_type: String,
    pub(super) root_flags: String,
    pub(super) hostname: Option<String>,
}

impl CommandLine {
    pub(super) fn read() -> Result<Self, InitError> {
        let text = fs::read_to_string("/proc/cmdline")
            .map_err(InitError::path("read", "/proc/cmdline"))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut options = Self {
            root: "/dev/vda".into(),
            root_type: "ext4".into(),
            root_flags: String::new(),
            hostname: None,
        };
        for word in text.split_ascii_whitespace() {
            match word.split_once('=') {
                Some(("smolvm.root", value)) => options.root = value.into(),
                Some(("smolvm.rootfstype", value)) => options.root_type = value.into(),
                Some(("smolvm.rootflags", value)) => options.root_flags = value.into(),
                Some(("smolvm.hostname", value)) => options.hostname = Some(value.into()),
                _ => {}
            }
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_each_option_counts_and_others_are_not_ours() {
        let options = CommandLine::parse(
            "console=ttyS0 root=/dev/sda smolvm.root=/dev/vdb smolvm.root=/dev/vdc \
             smolvm.rootflags=noatime,commit=30 smolvm.hostname=agent quiet\n",
        );
        assert_eq!(options.root, "/dev/vdc");
        assert_eq!(options.root_type, "ext4");
        assert_eq!(options.root_flags, "noatime,commit=30");
        assert_eq!(options.hostname.as_deref(), Some("agent"));
    }
}
