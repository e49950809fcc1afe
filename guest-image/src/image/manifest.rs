//! Which image of a layout is meant: its configuration and its layers. Spec:
//! OCI image-spec 1.1; Docker image specification 1.2; skopeo's `dir:`.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::blobs::Blobs;
use super::config::ARCHITECTURE;
use super::error::{Choice, ImageError};
use crate::artifact::decompress::Bounded;

/// Largest JSON document.
const MAX_JSON_BYTES: u64 = 4 << 20;
/// Most images of a layout, counted with those in nested indexes.
const MAX_IMAGES: usize = 256;
/// Index in index in index.
const MAX_INDEX_DEPTH: usize = 4;
/// Most candidates that an error names.
const MAX_NAMED: usize = 12;
/// Longest name of a candidate in characters.
const MAX_NAME_CHARS: usize = 100;
/// Annotations that name an image, the longer name first.
const NAMES: [&str; 2] = [
    "io.containerd.image.name",
    "org.opencontainers.image.ref.name",
];
/// What marks a manifest that speaks of another one.
const REFERENCE_TYPE: &str = "vnd.docker.reference.type";

#[derive(Deserialize, Clone)]
struct Descriptor {
    digest: String,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    #[serde(rename = "artifactType", default)]
    artifact_type: String,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Clone, Default)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    variant: Option<String>,
}

#[derive(Deserialize)]
struct IndexOrManifest {
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(rename = "artifactType", default)]
    artifact_type: String,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// What lies where in a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// `docker save`.
    Docker,
    /// `oci-layout`, `index.json`, `blobs/sha256/`.
    Oci,
    /// One manifest, and blobs called by their digests.
    Directory,
}

/// The files of the image that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageFiles {
    pub(super) config: String,
    pub(super) layers: Vec<String>,
}

/// One image of a layout.
struct Candidate {
    digest: String,
    names: Vec<String>,
    platform: Option<Platform>,
}

/// Which kind of layout these files are, if any.
pub(super) fn detect(blobs: &Blobs) -> Result<Option<Layout>, ImageError> {
    let oci = blobs.contains("oci-layout") && blobs.contains("index.json");
    if !blobs.contains("manifest.json") {
        return Ok(oci.then_some(Layout::Oci));
    }
    // A root file system may have a file of that name, too.
    let parsed = match read_json::<Vec<DockerManifest>>(blobs, "manifest.json") {
        Ok(_) => return Ok(Some(Layout::Docker)),
        Err(error) => error,
    };
    if oci {
        return Ok(Some(Layout::Oci));
    }
    let manifest = read_json::<IndexOrManifest>(blobs, "manifest.json");
    if manifest.is_ok_and(|manifest| manifest.config.is_some()) {
        return Ok(Some(Layout::Directory));
    }
    if blobs.contains("repositories") || blobs.contains("oci-layout") {
        return Err(parsed);
    }
    Ok(None)
}

/// The files of the one image for this architecture.
pub(super) fn choose(blobs: &Blobs, layout: Layout) -> Result<ImageFiles, ImageError> {
    match layout {
        Layout::Docker => docker_manifest(blobs),
        Layout::Oci => oci_manifest(blobs),
        Layout::Directory => {
            let manifest = read_json(blobs, "manifest.json")?;
            files_of(blobs, layout, manifest)
        }
    }
}

/// Config and layer files by Docker's `manifest.json`.
fn docker_manifest(blobs: &Blobs) -> Result<ImageFiles, ImageError> {
    let mut images: Vec<DockerManifest> = read_json(blobs, "manifest.json")?;
    // One image under several tags may be listed for each of them.
    let mut different: Vec<DockerManifest> = Vec::new();
    for image in images.drain(..) {
        let same = |other: &DockerManifest| {
            (&other.config, &other.layers) == (&image.config, &image.layers)
        };
        if !different.iter().any(same) {
            different.push(image);
        }
    }
    if different.len() > 1 {
        let named = different.iter().map(|image| {
            let tags = image.repo_tags.iter().flatten();
            let tags: Vec<String> = tags.map(|tag| shown(tag)).collect();
            if tags.is_empty() {
                shown(&image.config)
            } else {
                tags.join(" = ")
            }
        });
        return Err(choice(blobs, named.collect(), true));
    }
    let image = different.pop();
    let image = image.ok_or_else(|| choice(blobs, Vec::new(), false))?;
    Ok(ImageFiles {
        config: image.config,
        layers: image.layers,
    })
}

/// Config and layer files by `index.json`, for this architecture.
fn oci_manifest(blobs: &Blobs) -> Result<ImageFiles, ImageError> {
    let index: IndexOrManifest = read_json(blobs, "index.json")?;
    if index.config.is_some() {
        return files_of(blobs, Layout::Oci, index);
    }
    let mut candidates = Vec::new();
    let images = index.manifests.unwrap_or_default();
    collect(blobs, &images, &[], MAX_INDEX_DEPTH, &mut candidates)?;
    let digest = match candidates.as_slice() {
        // Its configuration says whether it fits.
        [only] => only.digest.clone(),
        _ => fitting(blobs, candidates)?,
    };
    let manifest = read_json(blobs, &blob_file(blobs, Layout::Oci, &digest)?)?;
    files_of(blobs, Layout::Oci, manifest)
}

/// Collects the images of an index and of those in it, each digest once.
fn collect(
    blobs: &Blobs,
    manifests: &[Descriptor],
    outer_names: &[String],
    depth: usize,
    candidates: &mut Vec<Candidate>,
) -> Result<(), ImageError> {
    for descriptor in manifests.iter().filter(|one| may_be_image(one)) {
        let file = blob_file(blobs, Layout::Oci, &descriptor.digest)?;
        let annotations = descriptor.annotations.as_ref();
        let named = |key: &&str| annotations.and_then(|list| list.get(*key)).cloned();
        let own = NAMES.iter().find_map(named);
        let names: Vec<String> = own.map_or_else(|| outer_names.to_vec(), |name| vec![name]);
        if let Some(known) = candidates
            .iter_mut()
            .find(|one| one.digest == descriptor.digest)
        {
            known.names.extend(names);
            continue;
        }
        if candidates.len() >= MAX_IMAGES {
            return Err(bad(
                blobs,
                format!("it holds more than {MAX_IMAGES} images"),
            ));
        }
        if descriptor.media_type.contains("index") || descriptor.media_type.contains("list") {
            let Some(depth) = depth.checked_sub(1) else {
                return Err(bad(blobs, "its index is nested too deeply".into()));
            };
            let inner: IndexOrManifest = read_json(blobs, &file)?;
            let inner = inner.manifests.unwrap_or_default();
            collect(blobs, &inner, &names, depth, candidates)?;
            continue;
        }
        candidates.push(Candidate {
            digest: descriptor.digest.clone(),
            names,
            platform: descriptor.platform.clone(),
        });
    }
    Ok(())
}

/// Leaves out attestations, signatures and other systems.
fn may_be_image(descriptor: &Descriptor) -> bool {
    let media_type = &descriptor.media_type;
    let is_image = media_type.is_empty()
        || ["image", "manifest"]
            .iter()
            .any(|part| media_type.contains(part));
    let refers = descriptor
        .annotations
        .as_ref()
        .is_some_and(|list| list.contains_key(REFERENCE_TYPE));
    let os = descriptor
        .platform
        .as_ref()
        .map_or("", |platform| &platform.os);
    is_image && !refers && descriptor.artifact_type.is_empty() && matches!(os, "" | "linux")
}

/// The digest of the one candidate for this architecture.
fn fitting(blobs: &Blobs, candidates: Vec<Candidate>) -> Result<String, ImageError> {
    let mut known = Vec::new();
    for mut candidate in candidates {
        if candidate.platform.is_none() {
            candidate.platform = configured_platform(blobs, &candidate.digest)?;
        }
        // What has no configuration of an image is none.
        if candidate.platform.is_some() {
            known.push(candidate);
        }
    }
    let platform = |one: &Candidate| one.platform.clone().unwrap_or_default();
    let mut fit: Vec<&Candidate> = known
        .iter()
        .filter(|one| platform(one).architecture == ARCHITECTURE)
        .collect();
    if fit.len() > 1 {
        // The plain image of several for newer processors.
        let plain = |one: &&&Candidate| {
            let variant = platform(one).variant;
            variant.is_none_or(|variant| matches!(&*variant, "" | "v1" | "v8"))
        };
        let plain: Vec<&Candidate> = fit.iter().filter(plain).copied().collect();
        if plain.len() == 1 {
            fit = plain;
        }
    }
    match fit.as_slice() {
        [only] => Ok(only.digest.clone()),
        [] => Err(choice(blobs, known.iter().map(label).collect(), false)),
        several => {
            let named = several.iter().map(|one| label(one)).collect();
            Err(choice(blobs, named, true))
        }
    }
}

/// The platform in the configuration of an image; `None` if there is none.
fn configured_platform(blobs: &Blobs, digest: &str) -> Result<Option<Platform>, ImageError> {
    let file = blob_file(blobs, Layout::Oci, digest)?;
    // Layouts of several platforms may come without the others' blobs.
    if !blobs.contains(&file) {
        return Ok(None);
    }
    let manifest: IndexOrManifest = read_json(blobs, &file)?;
    let is_config = |config: &Descriptor| config.media_type.contains("image");
    let config = manifest.config.filter(is_config);
    let Some(config) = config.filter(|_| manifest.artifact_type.is_empty()) else {
        return Ok(None);
    };
    let platform: Platform = read_json(blobs, &blob_file(blobs, Layout::Oci, &config.digest)?)?;
    Ok(matches!(&*platform.os, "" | "linux").then_some(platform))
}

/// What an error calls a candidate.
fn label(candidate: &Candidate) -> String {
    let names: Vec<String> = candidate.names.iter().map(|name| shown(name)).collect();
    let digest = shown(candidate.digest.get(..19).unwrap_or(&candidate.digest));
    let platform = candidate.platform.clone().unwrap_or_default();
    let variant = platform
        .variant
        .map_or_else(String::new, |v| format!("/{v}"));
    let platform = shown(&format!("{}{variant}", platform.architecture));
    match names.is_empty() {
        true => format!("{digest} ({platform})"),
        false => format!("{} ({platform}, {digest})", names.join(" = ")),
    }
}

pub(super) fn shown(text: &str) -> String {
    text.escape_debug().take(MAX_NAME_CHARS).collect()
}

fn choice(blobs: &Blobs, mut candidates: Vec<String>, all_fit: bool) -> ImageError {
    if candidates.len() > MAX_NAMED {
        let more = candidates.len() - MAX_NAMED;
        candidates.truncate(MAX_NAMED);
        candidates.push(format!("{more} more"));
    }
    ImageError::Choice {
        archive: blobs.label(),
        choice: Choice {
            architecture: ARCHITECTURE,
            candidates,
            all_fit,
        },
    }
}

fn files_of(
    blobs: &Blobs,
    layout: Layout,
    manifest: IndexOrManifest,
) -> Result<ImageFiles, ImageError> {
    let Some(config) = manifest.config else {
        return Err(bad(blobs, "its manifest has no configuration".into()));
    };
    if let Some(layer) = manifest
        .layers
        .iter()
        .find(|layer| layer.media_type.contains("encrypted"))
    {
        let digest = shown(&layer.digest);
        return Err(bad(blobs, format!("its layer {digest} is encrypted")));
    }
    let layers = manifest
        .layers
        .iter()
        .map(|layer| blob_file(blobs, layout, &layer.digest));
    Ok(ImageFiles {
        config: blob_file(blobs, layout, &config.digest)?,
        layers: layers.collect::<Result<_, _>>()?,
    })
}

/// The file of a digest.
fn blob_file(blobs: &Blobs, layout: Layout, digest: &str) -> Result<String, ImageError> {
    match digest.strip_prefix("sha256:").filter(|hex| is_sha256(hex)) {
        Some(hex) if layout == Layout::Directory => Ok(hex.to_owned()),
        Some(hex) => Ok(format!("blobs/sha256/{hex}")),
        None => Err(bad(blobs, format!("bad digest {}", shown(digest)))),
    }
}

pub(super) fn is_sha256(hex: &str) -> bool {
    hex.len() == 64
        && hex
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Reads a JSON document; one that is named by its digest is verified.
pub(super) fn read_json<T: DeserializeOwned>(blobs: &Blobs, file: &str) -> Result<T, ImageError> {
    let (reader, _) = blobs.open(file)?;
    let shown = shown(file);
    let mut bytes = Vec::new();
    Bounded::new(reader, MAX_JSON_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| bad(blobs, format!("{shown}: {error}")))?;
    let name = file.rsplit('/').next().unwrap_or(file);
    if is_sha256(name) && hex(&Sha256::digest(&bytes)) != name {
        return Err(bad(
            blobs,
            format!("{shown} does not match its digest (damaged)"),
        ));
    }
    serde_json::from_slice(&bytes).map_err(|error| bad(blobs, format!("{shown}: {error}")))
}

pub(super) fn bad(blobs: &Blobs, what: String) -> ImageError {
    ImageError::Layout {
        archive: blobs.label(),
        what,
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
