//! The group `kernel`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The commands of the group.
#[derive(Debug, Subcommand)]
pub(crate) enum KernelCommand {
    /// Import a kernel
    Import(KernelImportArgs),
    /// List the kernels
    Ls,
}

/// `kernel import`.
#[derive(Debug, Args)]
#[command(
    override_usage = "smolvm kernel import [NAME] [SOURCE]",
    after_help = "Examples: smolvm kernel import default              Debian's cloud kernel, by apt\n          \
        smolvm kernel import ./linux-image.deb    as `default`\n          \
        smolvm kernel import mine /boot/vmlinuz"
)]
pub(crate) struct KernelImportArgs {
    /// Its name [default: default]; left out, an only argument with a `/` or ending in .deb is the source
    #[arg(value_name = "NAME")]
    first: Option<PathBuf>,
    /// A Debian kernel package, a bzImage or ELF kernel, or a root directory [default: Debian's cloud
    /// kernel, fetched by apt]
    #[arg(value_name = "SOURCE")]
    second: Option<PathBuf>,
}

impl KernelImportArgs {
    /// The name, and the source if there is one.
    pub(crate) fn resolve(self) -> (String, Option<PathBuf>) {
        let default = || smolvm_engine::kernel::DEFAULT_NAME.to_owned();
        let Some(first) = self.first else {
            return (default(), None);
        };
        let text = first.to_string_lossy().into_owned();
        match self.second {
            Some(source) => (text, Some(source)),
            None if text.contains('/') || text.ends_with(".deb") => (default(), Some(first)),
            None => (text, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_argument_is_a_name_or_a_source() {
        let resolve = |first: &str, second: Option<&str>| {
            let args = KernelImportArgs {
                first: (!first.is_empty()).then(|| first.into()),
                second: second.map(PathBuf::from),
            };
            args.resolve()
        };
        assert_eq!(resolve("", None), ("default".into(), None));
        assert_eq!(resolve("mine", None), ("mine".into(), None));
        for source in ["./k", "k.deb", "/boot/vmlinuz"] {
            assert_eq!(
                resolve(source, None),
                ("default".into(), Some(source.into()))
            );
        }
        assert_eq!(resolve("a", Some("b")), ("a".into(), Some("b".into())));
    }
}
