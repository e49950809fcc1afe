//! Making machines from points.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use durable_files::{OsBackend, Staging};
use snapshot_format::{Arch, GuestOs, Point, PointRecord};
use vmm_core::machine::X86MachineRecord;
use vmm_core::x86::check_profile;

use super::archive::UnpackedArchive;
use super::create::beyond_limit;
use super::stored::{find_in_directory, find_in_store};
use crate::api::{Engine, EngineError, MachineInfo};
use crate::backend;
use crate::machine::{
    Backend, DEFAULT_HISTORY, DiskFile, MACHINE_FILE_VERSION, MachineDir, MachineFile,
    MachineOrigin, MachineSpec, RecordedState, with_hostname,
};
use crate::name::MachineName;
use crate::progress::Silent;
use crate::restore::{BootCache, FoundPoint, check_sound, fill_from_point};
use crate::save::record;
use crate::size::as_typed;
use crate::supervisor::unix_now;

/// Where a point is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PointSource {
    /// In a checkpoint directory.
    Directory(PathBuf),
    /// In an exported file.
    Archive(PathBuf),
    /// In the default store, by full id or unique prefix.
    Id(String),
    /// Of a machine: the one that it was last saved to or restored from.
    Machine(MachineName),
}

/// How to make a machine from a point.
#[derive(Debug, Clone)]
pub struct CreateFromOptions {
    /// Its name; one is made up when absent.
    pub name: Option<MachineName>,
    /// Where the point is.
    pub source: PointSource,
    /// Which of its generations: `~N`, a full id or a unique prefix.
    pub at: Option<String>,
    /// Must be equal to the point's, if given.
    pub cpus: Option<u8>,
    /// Must be equal to the point's, if given, in bytes.
    pub memory_bytes: Option<u64>,
    /// Must be equal to the point's, if given, in bytes.
    pub disk_bytes: Option<u64>,
    /// Must be equal to the point's, if given.
    pub cpu: Option<String>,
    /// Which backend runs it.
    pub backend: Backend,
    /// More environment.
    pub environment: BTreeMap<String, String>,
    /// Another directory in which commands start.
    pub working_directory: Option<String>,
    /// More labels.
    pub labels: BTreeMap<String, String>,
    /// Keep the identity of the point's machine.
    pub keep_identity: bool,
}

impl CreateFromOptions {
    /// From this point, everything else by default.
    pub fn new(source: PointSource) -> Self {
        Self {
            name: None,
            source,
            at: None,
            cpus: None,
            memory_bytes: None,
            disk_bytes: None,
            cpu: None,
            backend: Backend::Auto,
            environment: BTreeMap::new(),
            working_directory: None,
            labels: BTreeMap::new(),
            keep_identity: false,
        }
    }
}

impl Engine {
    /// Makes a machine from a point; its first start goes on there. Afterwards it stands alone: the
    /// checkpoint and the store may go.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unrestorable`] when this host cannot run the point, [`EngineError::Point`] when it cannot
    /// be read.
    pub fn create_from(&self, options: CreateFromOptions) -> Result<MachineInfo, EngineError> {
        self.home().ensure()?;
        let unpacked = match &options.source {
            PointSource::Archive(path) => Some(UnpackedArchive::open(self, path, &Silent)?),
            _ => None,
        };
        let found = match &unpacked {
            Some(unpacked) => {
                let source = PointSource::Directory(unpacked.path());
                self.find_point(&source, options.at.as_deref())?
            }
            None => self.find_point(&options.source, options.at.as_deref())?,
        };
        let point = found.history.own();
        check_sound(point, &found.packs)?;
        check_equal(&options, point.record())?;
        self.check_host(point, options.backend)?;
        let name = self.choose_name(options.name.as_ref())?;
        let staging = Staging::create(Arc::new(OsBackend), &self.home().machines())?;
        let dir = MachineDir::new(staging.path().to_owned());
        let cache = BootCache::new(self.home());
        fill_from_point(&dir, &found, &cache)?;
        let mut machine = machine_file(&options, &name, point);
        record::check_limits(&machine).map_err(beyond_limit)?;
        if !matches!(options.source, PointSource::Id(_)) {
            machine.history = found.history.earlier().len();
        }
        let recorded_line = machine.command_line.clone();
        let name_host = |machine: &mut MachineFile| {
            if !machine.keep_identity {
                machine.command_line = with_hostname(&recorded_line, &machine.name.hostname());
            }
        };
        let created = self.publish_machine(staging, machine, options.name.is_some(), name_host)?;
        let (dir, boot) = (self.dir(&created.name), &point.record().boot);
        cache.keep(&boot.kernel, &dir.kernel());
        cache.keep(&boot.initramfs, &dir.initramfs());
        Ok(created)
    }

    /// A point in a checkpoint directory, in the default store or of a machine, or one of its generations.
    pub(super) fn find_point(
        &self,
        source: &PointSource,
        at: Option<&str>,
    ) -> Result<FoundPoint, EngineError> {
        let mut found = match source {
            PointSource::Directory(path) => find_in_directory(path)?,
            PointSource::Archive(path) => {
                let what = format!("{} is an exported file", path.display());
                let hint = format!(
                    "make a checkpoint of it with: smolvm machine checkpoint-import {}",
                    path.display()
                );
                return Err(EngineError::Invalid {
                    what,
                    hint: Some(hint),
                });
            }
            PointSource::Id(id) => find_in_store(&self.home().store(), id)?,
            PointSource::Machine(name) => return self.point_of_machine(name, at),
        };
        if let Some(at) = at {
            found.history = found.history.at(at)?;
        }
        Ok(found)
    }

    /// Whether a backend of this host can run the point.
    pub(super) fn check_host(&self, point: &Point, backend: Backend) -> Result<(), EngineError> {
        let unrestorable = |reason: String| EngineError::Unrestorable {
            id: point.id().short(),
            reason,
        };
        let host = &point.record().host;
        if host.arch != Arch::X86_64 || host.guest_os != GuestOs::Linux {
            return Err(unrestorable(format!(
                "it is a {} {} guest, this version runs x86_64 linux guests",
                host.arch, host.guest_os
            )));
        }
        let hypervisor = backend::open(backend::choose(backend, self.home())?)?;
        let x86 = hypervisor.capabilities().x86.as_ref();
        let x86 = x86.ok_or_else(|| unrestorable("this host runs no x86_64 guests".to_owned()))?;
        let machine = X86MachineRecord::find(&point.record().states)
            .map_err(|error| unrestorable(error.to_string()))?;
        check_profile(&machine.cpuid, &x86.cpuid)
            .map_err(|error| unrestorable(error.to_string()))?;
        backend::check_tsc(machine.tsc_khz, x86)
            .map_err(|error| unrestorable(error.to_string()))?;
        Ok(())
    }
}

/// What a point fixes may be repeated only if equal.
fn check_equal(options: &CreateFromOptions, record: &PointRecord) -> Result<(), EngineError> {
    let spec = &record.spec;
    let mut differs = Vec::new();
    if options
        .cpus
        .is_some_and(|cpus| u32::from(cpus) != spec.vcpus)
    {
        differs.push(format!("--cpus {}", spec.vcpus));
    }
    if options
        .memory_bytes
        .is_some_and(|bytes| bytes != spec.memory_bytes)
    {
        differs.push(format!("--mem {}", as_typed(spec.memory_bytes)));
    }
    if options
        .disk_bytes
        .is_some_and(|bytes| bytes != spec.disk_bytes)
    {
        differs.push(format!("--disk {}", as_typed(spec.disk_bytes)));
    }
    if options
        .cpu
        .as_ref()
        .is_some_and(|cpu| *cpu != record.host.cpu_profile.to_string())
    {
        differs.push(format!("--cpu {}", record.host.cpu_profile));
    }
    if differs.is_empty() {
        return Ok(());
    }
    Err(EngineError::Invalid {
        what: format!(
            "the point has {}, which cannot be changed",
            differs.join(" ")
        ),
        hint: Some("leave these options out".to_owned()),
    })
}

fn machine_file(options: &CreateFromOptions, name: &MachineName, point: &Point) -> MachineFile {
    let record = point.record();
    let spec = &record.spec;
    let mut environment: BTreeMap<_, _> = spec.environment.iter().cloned().collect();
    environment.extend(options.environment.clone());
    let mut labels: BTreeMap<_, _> = spec.labels.iter().cloned().collect();
    labels.extend(options.labels.clone());
    let recorded = Some(spec.working_directory.clone()).filter(|directory| !directory.is_empty());
    MachineFile {
        v: MACHINE_FILE_VERSION,
        name: name.clone(),
        created_unix: unix_now(),
        spec: MachineSpec {
            cpus: u8::try_from(spec.vcpus).ok(),
            memory_bytes: spec.memory_bytes,
            disk_bytes: spec.disk_bytes,
            cpu: Some(record.host.cpu_profile.to_string()),
            backend: options.backend,
            environment,
            working_directory: options.working_directory.clone().or(recorded),
            labels,
        },
        origin: MachineOrigin::Point {
            id: point.id().to_string(),
            machine: record.machine.clone(),
        },
        state: RecordedState::Created,
        disk: DiskFile {
            base: "base-0.map".to_owned(),
            layers: vec!["layer-1".to_owned()],
            next: 2,
        },
        command_line: record.boot.command_line.clone(),
        head: Some(point.id().to_string()),
        restore: Some(point.id().to_string()),
        store: None,
        keep_identity: options.keep_identity,
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
        kind: None,
        booted: None,
        autosave: None,
    }
}
