//! Images made of layers: OCI layouts and `docker save` archives. Spec: OCI
//! image-spec 1.1; Docker image specification 1.2.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use durable_files::FileError;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::blobs::Blobs;
use super::config::{self, ARCHITECTURE, ImageConfig};
use super::contents::{Contents, Whiteouts};
use super::error::ImageError;
use super::manifest::{self, Layout, bad, hex, is_sha256, read_json, shown};
use crate::artifact::decompress::Compression;
use crate::progress::{Phase, Progress};

/// Most layers of an image.
const MAX_LAYERS: usize = 512;

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

/// Applies all layers of the image.
pub(crate) fn load(
    blobs: &Blobs,
    layout: Layout,
    contents: &mut Contents,
    progress: &dyn Progress,
) -> Result<ImageConfig, ImageError> {
    let files = manifest::choose(blobs, layout)?;
    let config: ConfigFile = read_json(blobs, &files.config)?;
    let layers = pair_layers(blobs, files.layers, &config.rootfs.diff_ids)?;
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
    let image = ImageConfig {
        env: take_environment(container.env.unwrap_or_default(), contents),
        working_dir: given(container.working_dir),
        user: given(container.user),
        entrypoint: container.entrypoint.unwrap_or_default(),
        cmd: container.cmd.unwrap_or_default(),
        architecture: config.architecture,
    };
    image
        .check_size()
        .map_err(|what| bad(blobs, what.to_owned()))?;
    Ok(image)
}

/// The entries of an environment that are `KEY=value`; what else is there no
/// process can have.
fn take_environment(entries: Vec<String>, contents: &mut Contents) -> Vec<String> {
    let (variables, others) = entries
        .into_iter()
        .partition(|entry| config::variable(entry).is_some());
    for entry in others {
        contents.left_out.add(&format!("environment `{entry}`"));
    }
    variables
}

fn apply_layer(
    blobs: &Blobs,
    layer: &Layer,
    label: &str,
    contents: &mut Contents,
    progress: &dyn Progress,
) -> Result<(), ImageError> {
    if layer.unpacked_sha256.is_none() {
        check_name(blobs, layer, label)?;
    }
    let (file, _) = blobs.open(&layer.file)?;
    let mut file = BufReader::with_capacity(1 << 18, file);
    let path = Path::new(label);
    let head = file.fill_buf().map_err(FileError::at("read", path))?;
    let compression = Compression::detect(head);
    let reader = compression
        .reader(file)
        .map_err(FileError::at("unpack", path))?;
    let mut input = Hashed {
        inner: contents.tree.budget().meter(reader),
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

/// A layer whose contents no digest is known of is what its own name says, where that is one.
fn check_name(blobs: &Blobs, layer: &Layer, label: &str) -> Result<(), ImageError> {
    let name = layer.file.rsplit('/').next().unwrap_or_default();
    if !is_sha256(name) {
        return Ok(());
    }
    let (mut file, _) = blobs.open(&layer.file)?;
    let mut sum = Sha256::new();
    std::io::copy(&mut file, &mut sum).map_err(FileError::at("read", Path::new(label)))?;
    match hex(&sum.finalize()) == name {
        true => Ok(()),
        false => Err(ImageError::Layout {
            archive: label.into(),
            what: "it does not match its digest (damaged)".into(),
        }),
    }
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
    let sum = |number: usize| match diff_ids.get(number) {
        None => Ok(None),
        Some(id) => match id.strip_prefix("sha256:") {
            Some(sum) => Ok(Some(sum.to_owned())),
            None => Err(bad(
                blobs,
                format!("its layers have digests of an unknown kind: {}", shown(id)),
            )),
        },
    };
    let layers = files.into_iter().enumerate();
    layers
        .map(|(number, file)| {
            let unpacked_sha256 = sum(number)?;
            Ok(Layer {
                file,
                unpacked_sha256,
            })
        })
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_without_a_known_digest_is_what_its_name_says() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::Directory(directory.path().to_owned());
        let right = hex(&Sha256::digest(b"layer"));
        let wrong = hex(&Sha256::digest(b"other"));
        for (file, sound) in [(right, true), (wrong, false), ("layer.tar".into(), true)] {
            std::fs::write(directory.path().join(&file), b"layer").unwrap();
            let layer = Layer {
                file,
                unpacked_sha256: None,
            };
            let checked = check_name(&blobs, &layer, "layer");
            assert_eq!(checked.is_ok(), sound, "{checked:?}");
        }
        let unknown = pair_layers(&blobs, vec!["a".into()], &["sha3:00".into()]);
        assert!(unknown.is_err());
        assert!(pair_layers(&blobs, vec!["a".into()], &["sha256:00".into()]).is_ok());
    }
}
