//! Images made of layers: OCI layouts and `docker save` archives. Spec: OCI
//! image-spec 1.1; Docker image specification 1.2.

use std::io::{BufRead, BufReader, Read};

use durable_files::FileError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::blobs::Blobs;
use super::config::{ARCHITECTURE, ImageConfig};
use super::contents::{Contents, Whiteouts};
use super::error::ImageError;
use crate::artifact::decompress::{Bounded, Compression};
use crate::progress::{Phase, Progress};

/// Largest JSON document.
const MAX_JSON_BYTES: u64 = 4 << 20;
/// Most layers of an image.
const MAX_LAYERS: usize = 512;
/// Index in index in index.
const MAX_INDEX_DEPTH: usize = 4;
/// Largest unpacked layer.
pub(crate) const MAX_UNPACKED_BYTES: u64 = 256 << 30;

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

#[derive(Deserialize)]
struct IndexOrManifest {
    #[serde(default)]
    manifests: Vec<Descriptor>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[derive(Deserialize, Default)]
struct ConfigFile {
    #[serde(default)]
    architecture: Option<String>,
    #[serde(default)]
    config: Option<ContainerConfig>,
    #[serde(default)]
    rootfs: RootFs,
}

#[derive(Deserialize, Default)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct ContainerConfig {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
}

/// One layer: its file and the digest of its unpacked bytes.
struct Layer {
    file: String,
    /// Hex SHA-256, if the image names it.
    unpacked_sha256: Option<String>,
}

/// Whether these files are an image in layers.
pub(crate) fn is_layered(blobs: &Blobs) -> bool {
    blobs.contains("manifest.json") && !blobs.contains("index.json")
        || blobs.contains("index.json") && blobs.contains("oci-layout")
}

/// Applies all layers of the image.
pub(crate) fn load(
    blobs: &Blobs,
    contents: &mut Contents,
    progress: &dyn Progress,
) -> Result<ImageConfig, ImageError> {
    let (config, files) = if blobs.contains("manifest.json") {
        docker_manifest(blobs)?
    } else {
        oci_manifest(blobs)?
    };
    let config: ConfigFile = read_json(blobs, &config)?;
    let layers = pair_layers(blobs, files, &config.rootfs.diff_ids)?;
    if let Some(other) = config
        .architecture
        .as_deref()
        .filter(|name| *name != ARCHITECTURE)
    {
        let other = other.escape_debug();
        return Err(bad(
            blobs,
            format!("it is made for {other}, machines are {ARCHITECTURE}"),
        ));
    }
    let count = layers.len();
    for (number, layer) in layers.iter().enumerate() {
        let label = format!("{} (layer {} of {count})", blobs.label(), number + 1);
        apply_layer(blobs, layer, &label, contents, progress)?;
    }
    let container = config.config.unwrap_or_default();
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    Ok(ImageConfig {
        env: container.env.unwrap_or_default(),
        working_dir: given(container.working_dir),
        user: given(container.user),
        entrypoint: container.entrypoint.unwrap_or_default(),
        cmd: container.cmd.unwrap_or_default(),
        architecture: config.architecture,
    })
}

fn apply_layer(
    blobs: &Blobs,
    layer: &Layer,
    label: &str,
    contents: &mut Contents,
    progress: &dyn Progress,
) -> Result<(), ImageError> {
    let (file, _) = blobs.open(&layer.file)?;
    let mut file = BufReader::with_capacity(1 << 18, file);
    let path = std::path::Path::new(label);
    let head = file.fill_buf().map_err(FileError::at("read", path))?;
    let compression = Compression::detect(head);
    let reader = compression
        .reader(file)
        .map_err(FileError::at("unpack", path))?;
    let mut input = Hashed {
        inner: Bounded::new(reader, MAX_UNPACKED_BYTES),
        sum: Sha256::new(),
    };
    let phase = Phase::begin(progress, &format!("importing {label}"), None);
    contents.add_tar(
        BufReader::with_capacity(1 << 18, &mut input),
        label,
        Whiteouts::Apply,
        &phase,
    )?;
    // The digest covers what follows the end marker as well.
    std::io::copy(&mut input, &mut std::io::sink()).map_err(FileError::at("unpack", path))?;
    let found = hex(&input.sum.finalize());
    match &layer.unpacked_sha256 {
        Some(expected) if *expected != found => Err(ImageError::Layout {
            archive: label.into(),
            what: "its contents do not match its digest (damaged)".into(),
        }),
        _ => Ok(()),
    }
}

/// Config and layer files by Docker's `manifest.json`.
fn docker_manifest(blobs: &Blobs) -> Result<(String, Vec<String>), ImageError> {
    let mut images: Vec<DockerManifest> = read_json(blobs, "manifest.json")?;
    let Some(image) = images.pop() else {
        return Err(bad(blobs, "it holds no image".into()));
    };
    if !images.is_empty() {
        images.push(image);
        let tags = images
            .into_iter()
            .flat_map(|image| image.repo_tags.unwrap_or_default());
        let tags: Vec<String> = tags.map(|tag| tag.escape_debug().to_string()).collect();
        let what = format!("it holds several images ({}): save one", tags.join(", "));
        return Err(bad(blobs, what));
    }
    Ok((image.config, image.layers))
}

/// Config and layer files by `index.json`, for this architecture.
fn oci_manifest(blobs: &Blobs) -> Result<(String, Vec<String>), ImageError> {
    let mut document: IndexOrManifest = read_json(blobs, "index.json")?;
    for _ in 0..MAX_INDEX_DEPTH {
        if let Some(config) = document.config {
            let layers = document
                .layers
                .iter()
                .map(|layer| blob_file(blobs, &layer.digest));
            return Ok((
                blob_file(blobs, &config.digest)?,
                layers.collect::<Result<_, _>>()?,
            ));
        }
        let chosen = choose_manifest(blobs, &document.manifests)?;
        document = read_json(blobs, &blob_file(blobs, &chosen.digest)?)?;
    }
    Err(bad(blobs, "its index is nested too deeply".into()))
}

/// The entry of an index that is for this architecture, or the only one.
fn choose_manifest<'a>(
    blobs: &Blobs,
    manifests: &'a [Descriptor],
) -> Result<&'a Descriptor, ImageError> {
    // Attestations carry the platform `unknown`.
    let images: Vec<&Descriptor> = manifests
        .iter()
        .filter(|one| one.media_type.is_empty() || one.media_type.contains("image"))
        .filter(|one| {
            one.platform
                .as_ref()
                .is_none_or(|p| p.os == "linux" || p.os.is_empty())
        })
        .collect();
    let fits = |one: &&&Descriptor| {
        one.platform
            .as_ref()
            .is_some_and(|platform| platform.architecture == ARCHITECTURE)
    };
    match (images.as_slice(), images.iter().find(fits)) {
        ([only], _) => Ok(only),
        (_, Some(found)) if images.iter().filter(|one| fits(one)).count() == 1 => Ok(found),
        ([], _) => Err(bad(blobs, "it holds no image".into())),
        _ => Err(bad(
            blobs,
            format!("it does not hold exactly one image for {ARCHITECTURE}"),
        )),
    }
}

/// The file of a digest in an OCI layout.
fn blob_file(blobs: &Blobs, digest: &str) -> Result<String, ImageError> {
    match digest.strip_prefix("sha256:").filter(|hex| is_sha256(hex)) {
        Some(hex) => Ok(format!("blobs/sha256/{hex}")),
        None => Err(bad(blobs, format!("bad digest {}", digest.escape_debug()))),
    }
}

fn is_sha256(hex: &str) -> bool {
    hex.len() == 64
        && hex
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn pair_layers(
    blobs: &Blobs,
    files: Vec<String>,
    diff_ids: &[String],
) -> Result<Vec<Layer>, ImageError> {
    if files.len() > MAX_LAYERS {
        return Err(bad(blobs, format!("it has more than {MAX_LAYERS} layers")));
    }
    if !diff_ids.is_empty() && diff_ids.len() != files.len() {
        return Err(bad(
            blobs,
            "its layers and their digests differ in number".into(),
        ));
    }
    let sum = |number: usize| {
        diff_ids
            .get(number)?
            .strip_prefix("sha256:")
            .map(String::from)
    };
    let layers = files.into_iter().enumerate();
    Ok(layers
        .map(|(number, file)| Layer {
            file,
            unpacked_sha256: sum(number),
        })
        .collect())
}

/// Reads a JSON document; one that is named by its digest is verified.
fn read_json<T: DeserializeOwned>(blobs: &Blobs, file: &str) -> Result<T, ImageError> {
    let (reader, _) = blobs.open(file)?;
    let shown = file.escape_debug();
    let mut bytes = Vec::new();
    Bounded::new(reader, MAX_JSON_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| bad(blobs, format!("{shown}: {error}")))?;
    if let Some(expected) = file.strip_prefix("blobs/sha256/")
        && hex(&Sha256::digest(&bytes)) != expected
    {
        return Err(bad(
            blobs,
            format!("{shown} does not match its digest (damaged)"),
        ));
    }
    serde_json::from_slice(&bytes).map_err(|error| bad(blobs, format!("{shown}: {error}")))
}

fn bad(blobs: &Blobs, what: String) -> ImageError {
    ImageError::Layout {
        archive: blobs.label(),
        what,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A reader that sums up what passes.
struct Hashed<R> {
    inner: R,
    sum: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.sum.update(&buf[..n]);
        Ok(n)
    }
}
