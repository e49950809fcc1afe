//! What this host can do, and how to mend what it cannot.

use std::path::Path;

use rustix::fs::{Access, access, statvfs};

use crate::api::Engine;
use crate::backend::{self, PREFERENCE};
use crate::image::Image;
use crate::kernel::Kernel;
use crate::machine::Backend;

/// Below this many free bytes in the home a user is warned: an image and a machine need about as much.
const LOW_DISK_BYTES: u64 = 2 << 30;
/// KVM's device.
const KVM_DEVICE: &str = "/dev/kvm";

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at.
    pub subject: Subject,
    /// Whether it is as it should be.
    pub good: bool,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    pub mend: Option<String>,
}

/// What [`Engine::doctor`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// A backend: whether it can run a machine here.
    Backend(Backend),
    /// How the memory of a point comes back.
    Restore,
    /// The kernel that machines get by default.
    Kernel,
    /// The image that machines get by default.
    Image,
    /// A program that images and kernels are made with.
    Tool(&'static str),
    /// Room for machines.
    Disk,
}

impl Subject {
    /// What kind of thing it is, one word.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Backend(_) => "backend",
            Self::Restore => "restore",
            Self::Kernel => "kernel",
            Self::Image => "image",
            Self::Tool(_) => "tool",
            Self::Disk => "disk",
        }
    }

    /// Which one of its kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Backend(backend) => backend.name(),
            Self::Tool(name) => name,
            Self::Kernel | Self::Image => "default",
            Self::Restore => "memory",
            Self::Disk => "home",
        }
    }
}

/// All findings about a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// One by one.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether some backend can run a machine here.
    pub fn can_run(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.good && matches!(finding.subject, Subject::Backend(_)))
    }
}

impl Engine {
    /// Looks at the host and at this home. Changes nothing.
    pub fn doctor(&self) -> Report {
        let mut findings: Vec<Finding> = PREFERENCE.into_iter().map(backend_finding).collect();
        let root = self.home().root();
        let form = "with soft as it is used, with kvm before the machine goes on".to_owned();
        findings.push(good(Subject::Restore, form));
        findings.push(kernel_finding(root));
        findings.push(image_finding(root));
        findings.extend(TOOLS.iter().map(tool_finding));
        findings.push(disk_finding(root));
        Report { findings }
    }
}

fn backend_finding(backend: Backend) -> Finding {
    let subject = Subject::Backend(backend);
    match backend::probe(backend) {
        Ok(()) => {
            let how = match backend {
                Backend::Soft if soft_backend::translates() => ", translating what runs often",
                Backend::Soft => ", interpreting: this host lets no code run that was made here",
                _ => "",
            };
            good(subject, format!("can run machines here{how}"))
        }
        Err(error) => Finding {
            subject,
            good: false,
            detail: crate::error_chain::chain(&error),
            mend: backend::mend(&error).or_else(|| mend_host(backend)),
        },
    }
}

/// What makes the host itself able to run a backend.
fn mend_host(backend: Backend) -> Option<String> {
    if backend != Backend::Kvm || !cfg!(target_os = "linux") {
        return None;
    }
    Some(if Path::new(KVM_DEVICE).exists() {
        "have nested virtualization switched on by whoever runs this host".to_owned()
    } else {
        "switch virtualization on in the firmware, or nested virtualization where this host is itself \
         a virtual machine; then as root: modprobe kvm_intel || modprobe kvm_amd"
            .to_owned()
    })
}

fn kernel_finding(root: &Path) -> Finding {
    match Kernel::default_of(root) {
        Ok(kernel) => good(
            Subject::Kernel,
            format!("{} ({})", kernel.name(), kernel.info().version),
        ),
        Err(error) => Finding {
            subject: Subject::Kernel,
            good: false,
            mend: error.hint(),
            detail: crate::error_chain::chain(&error),
        },
    }
}

fn image_finding(root: &Path) -> Finding {
    match Image::default_of(root) {
        Ok(image) => good(Subject::Image, image.name().to_owned()),
        Err(error) => Finding {
            subject: Subject::Image,
            good: false,
            mend: error.hint(),
            detail: crate::error_chain::chain(&error),
        },
    }
}

/// A program, what needs it, and the Debian package that has it.
struct Tool {
    program: &'static str,
    purpose: &'static str,
    package: &'static str,
}

const TOOLS: [Tool; 3] = [
    Tool {
        program: "mmdebstrap",
        purpose: "for `image build`",
        package: "mmdebstrap",
    },
    Tool {
        program: "newuidmap",
        purpose: "for `image build` as an ordinary user",
        package: "uidmap",
    },
    Tool {
        program: "apt-get",
        purpose: "for `kernel import` without a source",
        package: "apt",
    },
];

fn tool_finding(tool: &Tool) -> Finding {
    let subject = Subject::Tool(tool.program);
    if in_path(tool.program) {
        return good(subject, tool.purpose.to_owned());
    }
    Finding {
        subject,
        good: false,
        detail: format!("not installed; {}", tool.purpose),
        mend: Some(format!("as root: apt-get install {}", tool.package)),
    }
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .any(|directory| access(directory.join(program), Access::EXEC_OK).is_ok())
}

fn disk_finding(root: &Path) -> Finding {
    let subject = Subject::Disk;
    // The home need not exist yet.
    let Some(place) = root.ancestors().find(|place| place.exists()) else {
        return good(subject, root.display().to_string());
    };
    let free_bytes = match statvfs(place) {
        Ok(fs) => fs.f_bavail.saturating_mul(fs.f_frsize),
        Err(error) => {
            return Finding {
                subject,
                good: false,
                detail: format!("cannot look at {}: {error}", place.display()),
                mend: Some("set SMOLVM_HOME to a directory of yours".to_owned()),
            };
        }
    };
    let enough = free_bytes >= LOW_DISK_BYTES;
    Finding {
        subject,
        good: enough,
        detail: format!(
            "{:.1} GiB free in {}",
            free_bytes as f64 / f64::from(1 << 30),
            root.display()
        ),
        mend: (!enough)
            .then(|| "free some disk space, or set SMOLVM_HOME to a larger file system".to_owned()),
    }
}

fn good(subject: Subject, detail: String) -> Finding {
    Finding {
        subject,
        good: true,
        detail,
        mend: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::EngineOptions;
    use crate::api::process::ProcessModel;
    use crate::home::Home;

    #[test]
    fn an_empty_home_is_looked_at_and_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("home");
        let engine =
            Engine::open(EngineOptions::new(Home::at(&home), ProcessModel::Threads)).unwrap();
        let report = engine.doctor();
        assert!(!home.exists());
        let of = |kind| {
            report
                .findings
                .iter()
                .find(|finding| finding.subject.kind() == kind)
                .unwrap()
        };
        assert!(!of("kernel").good && !of("image").good);
        assert_eq!(
            of("image").mend.as_deref(),
            Some("make one: smolvm image build debian")
        );
        assert!(of("disk").detail.contains("free in"));
        // What cannot run says why, what can does not.
        for finding in &report.findings {
            assert!(!finding.detail.is_empty());
            assert!(finding.good || finding.mend.is_some() || finding.subject.kind() == "backend");
        }
    }
}
