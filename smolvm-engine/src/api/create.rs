//! Making machines.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, PoisonError};

use durable_files::{OsBackend, PublishError, Staging};
use snapshot_format::LimitError;

use crate::api::{Engine, EngineError, MachineInfo};
use crate::file_error::FileError;
use crate::home::make_private_dir;
use crate::image::Image;
use crate::kernel::Kernel;
use crate::machine::{
    BaseMap, DEFAULT_HISTORY, DiskFile, MACHINE_FILE_VERSION, MachineDir, MachineFile,
    MachineOrigin, MachineSpec, RecordedState, create_overlay, link_or_copy, replace_file,
    with_hostname,
};
use crate::name::MachineName;
use crate::phase::Phase;
use crate::save::record;
use crate::size::as_typed;
use crate::supervisor::unix_now;

/// Smallest guest memory in bytes that a kernel boots in.
const MIN_MEMORY_BYTES: u64 = 96 << 20;
/// Largest guest memory in bytes.
const MAX_MEMORY_BYTES: u64 = 1 << 40;
/// Name of a machine's first map of chunks.
const FIRST_BASE: &str = "base-0.map";
/// Name of a machine's first overlay.
const FIRST_LAYER: &str = "layer-1";

/// How to make a machine.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// Its name; one is made up when absent.
    pub name: Option<MachineName>,
    /// The image; the default one when absent.
    pub image: Option<String>,
    /// The kernel; the default one when absent.
    pub kernel: Option<String>,
    /// What it is.
    pub spec: MachineSpec,
}

impl Engine {
    /// Makes a machine from an image. Afterwards it stands alone: image and kernel may go.
    ///
    /// # Errors
    ///
    /// [`EngineError::MachineExists`]; what is wrong with image, kernel or a value.
    pub fn create(&self, options: CreateOptions) -> Result<MachineInfo, EngineError> {
        self.home().ensure()?;
        let root = self.home().root();
        let image = match &options.image {
            Some(name) => Image::open(root, name)?,
            None => Image::default_of(root)?,
        };
        let kernel = match &options.kernel {
            Some(name) => Kernel::open(root, name)?,
            None => Kernel::default_of(root)?,
        };
        check(&options.spec, image.info().size_bytes)?;
        let name = self.choose_name(options.name.as_ref())?;
        let mut spec = options.spec;
        take_image_defaults(&mut spec, &image);
        let staging = Staging::create(Arc::new(OsBackend), &self.home().machines())?;
        let dir = MachineDir::new(staging.path().to_owned());
        let kind = fill_from_image(&dir, &image, &kernel, spec.disk_bytes)?;
        let machine = MachineFile {
            v: MACHINE_FILE_VERSION,
            created_unix: unix_now(),
            origin: MachineOrigin::Image {
                image: image.name().to_owned(),
                kernel: kernel.name().to_owned(),
            },
            state: RecordedState::Created,
            disk: DiskFile {
                base: FIRST_BASE.to_owned(),
                layers: vec![FIRST_LAYER.to_owned()],
                next: 2,
            },
            command_line: kernel.info().cmdline.clone(),
            head: None,
            restore: None,
            store: None,
            keep_identity: false,
            has_identity: false,
            identity_since: None,
            branchable: true,
            history: DEFAULT_HISTORY,
            starts: 0,
            undos: 0,
            former_names: Vec::new(),
            passing: false,
            branched_from: None,
            branch: None,
            kind: Some(kind),
            booted: None,
            autosave: None,
            spec,
            name,
        };
        record::check_limits(&machine).map_err(beyond_limit)?;
        let kernel_line = kernel.info().cmdline.clone();
        let name_host = |machine: &mut MachineFile| {
            machine.command_line = with_hostname(&kernel_line, &machine.name.hostname());
        };
        self.publish_machine(staging, machine, options.name.is_some(), name_host)
    }

    /// The name that was asked for, if it is free, or one that no machine has.
    pub(crate) fn choose_name(
        &self,
        asked: Option<&MachineName>,
    ) -> Result<MachineName, EngineError> {
        self.remove_cut_off()?;
        let Some(name) = asked.cloned() else {
            return self.free_name();
        };
        if MachineDir::new(self.home().machine(&name)).exists() {
            return Err(EngineError::MachineExists { name });
        }
        Ok(name)
    }

    /// Gives a staged machine its name. A name that was made up gives way to another when somebody else
    /// took it meanwhile; `named` changes what else depends on it.
    pub(crate) fn publish_machine(
        &self,
        mut staging: Staging,
        mut machine: MachineFile,
        asked_for: bool,
        named: impl Fn(&mut MachineFile),
    ) -> Result<MachineInfo, EngineError> {
        let dir = MachineDir::new(staging.path().to_owned());
        if let Some(owned) = &self.passing {
            machine.passing = true;
            let lock = dir.lock_owner()?;
            let mut owned = owned.lock().unwrap_or_else(PoisonError::into_inner);
            owned.push(lock);
        }
        loop {
            named(&mut machine);
            dir.write_first(&machine)?;
            Phase::MachineStaged.reached();
            match staging.publish_as(machine.name.as_str()) {
                Ok(_) => {
                    Phase::MachineCreated.reached();
                    return self.machine(&machine.name);
                }
                // Somebody else got on by taking it: this ends.
                Err(PublishError::Taken) if !asked_for => machine.name = self.free_name()?,
                Err(PublishError::Taken) => {
                    let name = machine.name;
                    return Err(EngineError::MachineExists { name });
                }
                Err(PublishError::File(error) | PublishError::Unknown(error)) => {
                    return Err(error.into());
                }
            }
        }
    }

    /// A name that no machine has.
    fn free_name(&self) -> Result<MachineName, EngineError> {
        let taken = self.machine_names()?;
        let mut number = taken.len() + 1;
        loop {
            let name: MachineName = format!("machine-{number}").parse()?;
            if !taken.contains(&name) {
                return Ok(name);
            }
            number += 1;
        }
    }
}

fn check(spec: &MachineSpec, image_bytes: u64) -> Result<(), EngineError> {
    let invalid = |what: String, hint: &str| {
        Err(EngineError::Invalid {
            what,
            hint: Some(hint.to_owned()),
        })
    };
    if !(MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES).contains(&spec.memory_bytes) {
        let what = format!("--mem {} is not possible", as_typed(spec.memory_bytes));
        return invalid(what, "choose between 96M and 1T, for instance: --mem 1G");
    }
    if spec.disk_bytes < image_bytes {
        let what = format!(
            "--disk {} is smaller than the image",
            as_typed(spec.disk_bytes)
        );
        let mib = image_bytes.div_ceil(1 << 20);
        return invalid(what, &format!("choose at least: --disk {mib}M"));
    }
    if spec.disk_bytes > cow_disk::MAX_DISK_BYTES || !spec.disk_bytes.is_multiple_of(4096) {
        let what = format!("--disk {} is not possible", as_typed(spec.disk_bytes));
        return invalid(what, "choose a multiple of 4 KiB of at most 8 TiB");
    }
    if let Some(cpus) = spec.cpus
        && !(1..=vmm_core::x86::MAX_VCPUS).contains(&cpus)
    {
        return invalid(
            format!("--cpus {cpus} is not possible"),
            "choose 1 to 16, for instance: --cpus 2",
        );
    }
    if let Some(cpu) = &spec.cpu
        && let Err(error) = cpu.parse::<vmm_core::x86::CpuProfile>()
    {
        return invalid(error.to_string(), "choose one of them with --cpu");
    }
    Ok(())
}

/// What exceeds a limit of points could not be saved.
pub(super) fn beyond_limit(error: LimitError) -> EngineError {
    EngineError::Invalid {
        what: format!("such a machine could not be saved: {error}"),
        hint: Some("give fewer or shorter environment variables and labels".to_owned()),
    }
}

/// What the image says about commands holds unless the spec says otherwise.
fn take_image_defaults(spec: &mut MachineSpec, image: &Image) {
    let config = &image.info().config;
    for (key, value) in config.environment() {
        spec.environment
            .entry(key.to_owned())
            .or_insert_with(|| value.to_owned());
    }
    if spec.working_directory.is_none() {
        spec.working_directory = config.working_dir.clone().filter(|dir| !dir.is_empty());
    }
}

/// Puts everything that the machine needs into its own directory. Returns what it is made of, as a digest.
fn fill_from_image(
    dir: &MachineDir,
    image: &Image,
    kernel: &Kernel,
    disk_bytes: u64,
) -> Result<String, EngineError> {
    for path in [dir.packs(), dir.records(), dir.disk()] {
        make_private_dir(&path)?;
    }
    let map = image.map()?;
    image.chunks().pin_into(&dir.packs(), map.chunks())?;
    let base = BaseMap::of_image(map.chunks()).map_err(|error| EngineError::Invalid {
        what: format!("the image cannot be a disk: {error}"),
        hint: None,
    })?;
    let base = base.encode();
    replace_file(&dir.disk().join(FIRST_BASE), &base)?;
    create_overlay(&dir.disk().join(FIRST_LAYER), disk_bytes)?;
    link_or_copy(&kernel.vmlinux_path(), &dir.kernel())?;
    let initramfs = kernel.initramfs(crate::GUEST_AGENT)?;
    let path = dir.initramfs();
    let file = fs::File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&path);
    file.and_then(|mut file| file.write_all(&initramfs))
        .map_err(FileError::at("write", &path))?;
    Ok(kind_of(&base, kernel, &initramfs))
}

/// What tells machines apart whose guests boot differently, as far as their files go.
fn kind_of(base: &[u8], kernel: &Kernel, initramfs: &[u8]) -> String {
    let mut digest = blake3::Hasher::new();
    digest.update(blake3::hash(base).as_bytes());
    digest.update(blake3::hash(kernel.info().vmlinux_blake3.as_bytes()).as_bytes());
    digest.update(blake3::hash(initramfs).as_bytes());
    digest.finalize().to_hex().to_string()
}
