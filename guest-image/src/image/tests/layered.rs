//! OCI layouts and `docker save` archives.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::*;

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Two layers: the second hides files of the first.
fn layers() -> [Vec<u8>; 2] {
    let mut first = TarBuilder::default();
    first
        .file("keep", b"1")
        .file("gone", b"1")
        .file("opaque/old", b"1")
        .file("replaced", b"1");
    first.dir("usr/lib", 0o755).symlink("lib", "usr/lib");
    let mut second = TarBuilder::default();
    second
        .file(".wh.gone", b"")
        .file("opaque/.wh..wh..opq", b"")
        .file("opaque/new", b"2");
    second.file("replaced", b"2").file("lib/through-link", b"2");
    [first.finish(), second.finish()]
}

fn config(layers: &[Vec<u8>], architecture: &str) -> Vec<u8> {
    let ids: Vec<String> = layers
        .iter()
        .map(|layer| format!("sha256:{}", sha(layer)))
        .collect();
    let container = json!({
        "Env": ["PATH=/bin", "X=1"], "WorkingDir": "/work", "User": "nobody",
        "Entrypoint": ["/init"], "Cmd": null
    });
    let config = json!({
        "architecture": architecture, "os": "linux", "config": container,
        "rootfs": { "type": "layers", "diff_ids": ids }
    });
    serde_json::to_vec(&config).unwrap()
}

/// An OCI layout as name and content of its files.
fn layout(architecture: &str) -> Vec<(String, Vec<u8>)> {
    let layers = layers();
    let mut files = vec![(
        "oci-layout".into(),
        br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(),
    )];
    let mut blob = |bytes: Vec<u8>, media_type: &str| -> Value {
        let digest = sha(&bytes);
        let descriptor = json!({ "digest": format!("sha256:{digest}"), "size": bytes.len(), "mediaType": media_type });
        files.push((format!("blobs/sha256/{digest}"), bytes));
        descriptor
    };
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&layers[0]).unwrap();
    let packed = [
        gzip.finish().unwrap(),
        zstd::encode_all(&layers[1][..], 1).unwrap(),
    ];
    let layer_type = "application/vnd.oci.image.layer.v1.tar";
    let descriptors: Vec<Value> = packed.map(|bytes| blob(bytes, layer_type)).into();
    let config = blob(
        config(&layers, architecture),
        "application/vnd.oci.image.config.v1+json",
    );
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": descriptors });
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let mut manifest = blob(serde_json::to_vec(&manifest).unwrap(), manifest_type);
    manifest["platform"] = json!({ "os": "linux", "architecture": architecture });
    let attestation = json!({
        "digest": format!("sha256:{}", "0".repeat(64)), "mediaType": manifest_type,
        "platform": { "os": "unknown", "architecture": "unknown" }
    });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest, attestation] });
    files.push(("index.json".into(), serde_json::to_vec(&index).unwrap()));
    files
}

fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar = TarBuilder::default();
    for (name, bytes) in files {
        tar.file(name, bytes);
    }
    tar.finish()
}

fn docker_save(architecture: &str) -> Vec<(String, Vec<u8>)> {
    let [first, second] = layers();
    let config = config(&[first.clone(), second.clone()], architecture);
    let manifest = json!([{
        "Config": "config.json", "RepoTags": ["x:latest"],
        "Layers": ["a/layer.tar", "b/layer.tar"]
    }]);
    vec![
        ("a/layer.tar".into(), first),
        ("b/layer.tar".into(), second),
        ("config.json".into(), config),
        (
            "manifest.json".into(),
            serde_json::to_vec(&manifest).unwrap(),
        ),
    ]
}

fn check(place: &Place, image: &Image) {
    assert_eq!(image.info().config.env, ["PATH=/bin", "X=1"]);
    assert_eq!(image.info().config.working_dir.as_deref(), Some("/work"));
    assert_eq!(image.info().config.user.as_deref(), Some("nobody"));
    assert_eq!(image.info().config.entrypoint, ["/init"]);
    if !have_e2fsprogs() {
        return;
    }
    let disk = place.raw(image);
    disk.check();
    let made = disk.text("stat /work");
    assert!(made.contains("Type: directory"), "{made}");
    for (path, content) in [
        ("/keep", "1"),
        ("/replaced", "2"),
        ("/opaque/new", "2"),
        ("/usr/lib/through-link", "2"),
    ] {
        assert_eq!(disk.cat(path), content.as_bytes(), "{path}");
    }
    for path in ["/gone", "/opaque/old", "/.wh.gone", "/opaque/.wh..wh..opq"] {
        assert!(!disk.exists(path), "{path}");
    }
}

#[test]
fn an_oci_layout_as_directory_and_as_archive() {
    let place = Place::new();
    let files = layout(config::ARCHITECTURE);
    for (name, bytes) in &files {
        place.file(&format!("layout/{name}"), bytes);
    }
    let source = place.dir.path().join("layout");
    check(
        &place,
        &import(&place.home(), "dir", &source, &Silent).unwrap(),
    );
    check(
        &place,
        &place.import("layout.tar", &tar_of(&files)).unwrap(),
    );
}

#[test]
fn a_docker_save_archive() {
    let place = Place::new();
    let archive = tar_of(&docker_save(config::ARCHITECTURE));
    check(&place, &place.import("save.tar", &archive).unwrap());
    let packed = place.file("save.tar.zst", &zstd::encode_all(&archive[..], 1).unwrap());
    check(
        &place,
        &import(&place.home(), "packed", &packed, &Silent).unwrap(),
    );
}

/// An OCI layout whose index lists its one image as `change` has it; the blobs
/// stay.
fn with_index(change: impl Fn(Value) -> Vec<Value>) -> Vec<(String, Vec<u8>)> {
    let mut files = layout(config::ARCHITECTURE);
    let (_, index) = files.iter_mut().find(|(n, _)| n == "index.json").unwrap();
    let old: Value = serde_json::from_slice(index).unwrap();
    let manifests = change(old["manifests"][0].clone());
    *index = serde_json::to_vec(&json!({ "manifests": manifests })).unwrap();
    files
}

fn tagged(image: &Value, tag: &str) -> Value {
    let mut image = image.clone();
    image["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
    image
}

/// Adds a manifest of an image for `architecture`, whose platform only its
/// configuration names.
fn add_image(files: &mut Vec<(String, Vec<u8>)>, architecture: &str) -> Value {
    let mut blob = |value: Value| {
        let bytes = serde_json::to_vec(&value).unwrap();
        let digest = sha(&bytes);
        files.push((format!("blobs/sha256/{digest}"), bytes));
        format!("sha256:{digest}")
    };
    let config = blob(json!({ "architecture": architecture, "os": "linux" }));
    let media_type = "application/vnd.oci.image.config.v1+json";
    let config = json!({ "digest": config, "mediaType": media_type });
    let manifest = blob(json!({ "config": config, "layers": [] }));
    json!({ "digest": manifest, "mediaType": "application/vnd.oci.image.manifest.v1+json" })
}

#[test]
fn one_image_under_two_tags_is_one_image() {
    let place = Place::new();
    let files = with_index(|image| vec![tagged(&image, "latest"), tagged(&image, "1.0")]);
    check(&place, &place.import("a.tar", &tar_of(&files)).unwrap());
    // Twice in the list of `docker save`, too.
    let place = Place::new();
    let mut files = docker_save(config::ARCHITECTURE);
    let (_, manifest) = files.last_mut().unwrap();
    let old: Value = serde_json::from_slice(manifest).unwrap();
    *manifest = serde_json::to_vec(&json!([old[0], old[0]])).unwrap();
    check(&place, &place.import("a.tar", &tar_of(&files)).unwrap());
}

#[test]
fn a_platform_that_only_the_configuration_names_is_found() {
    let place = Place::new();
    let mut files = Vec::new();
    let other = add_image(&mut files, "s390x");
    let mut all = with_index(|mut image| {
        image.as_object_mut().unwrap().remove("platform");
        let signature = json!({
            "digest": format!("sha256:{}", "1".repeat(64)),
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": "application/vnd.example.signature"
        });
        vec![other.clone(), signature, image]
    });
    all.extend(files);
    check(&place, &place.import("a.tar", &tar_of(&all)).unwrap());
}

#[test]
fn several_images_are_listed() {
    let mut files = Vec::new();
    let second = add_image(&mut files, config::ARCHITECTURE);
    let mut all = with_index(|image| vec![tagged(&image, "one"), tagged(&second, "two")]);
    all.extend(files);
    let error = Place::new().import("a.tar", &tar_of(&all)).unwrap_err();
    let text = error.to_string();
    for part in ["several", "one (", "two (", "sha256:"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(error.hint().unwrap().contains("skopeo copy"));

    let mut files = Vec::new();
    let others = ["s390x", "ppc64le"].map(|name| add_image(&mut files, name));
    let mut all = with_index(|_| others.to_vec());
    all.extend(files);
    let error = Place::new().import("a.tar", &tar_of(&all)).unwrap_err();
    let text = error.to_string();
    for part in [config::ARCHITECTURE, "s390x", "ppc64le"] {
        assert!(text.contains(part), "{text}");
    }
}

/// What `skopeo copy ... dir:DIR` and `docker save | tar -x` leave.
#[test]
fn layouts_in_plain_directories() {
    let place = Place::new();
    let files = layout(config::ARCHITECTURE);
    for (name, bytes) in &files {
        let Some(digest) = name.strip_prefix("blobs/sha256/") else {
            continue;
        };
        let is_manifest = bytes.starts_with(b"{\"config\"");
        let name = if is_manifest { "manifest.json" } else { digest };
        place.file(&format!("skopeo/{name}"), bytes);
    }
    for (name, bytes) in docker_save(config::ARCHITECTURE) {
        place.file(&format!("docker/{name}"), &bytes);
    }
    for name in ["skopeo", "docker"] {
        let source = place.dir.path().join(name);
        let image = import(&place.home(), name, &source, &Silent).unwrap();
        check(&place, &image);
    }
}

#[test]
fn an_environment_that_no_process_can_have_is_left_out() {
    let place = Place::new();
    let mut files = docker_save(config::ARCHITECTURE);
    let (_, config) = files.iter_mut().find(|(n, _)| n == "config.json").unwrap();
    let mut value: Value = serde_json::from_slice(config).unwrap();
    value["config"]["Env"] = json!(["PATH=/bin", "=x", "ALONE", "X=1"]);
    *config = serde_json::to_vec(&value).unwrap();
    let image = place.import("a.tar", &tar_of(&files)).unwrap();
    check(&place, &image);
    assert_eq!(image.info().left_out.kinds().count(), 2);

    value["config"]["Env"] = json!([format!("A={}", "x".repeat(2 << 20))]);
    let (_, config) = files.iter_mut().find(|(n, _)| n == "config.json").unwrap();
    *config = serde_json::to_vec(&value).unwrap();
    let error = Place::new().import("a.tar", &tar_of(&files)).unwrap_err();
    assert!(error.to_string().contains("1 MiB"), "{error}");
}

#[test]
fn wrong_digests_architectures_and_missing_layers_are_refused() {
    let other = if config::ARCHITECTURE == "amd64" {
        "arm64"
    } else {
        "amd64"
    };
    let error = Place::new()
        .import("a.tar", &tar_of(&docker_save(other)))
        .unwrap_err();
    assert!(error.to_string().contains(other), "{error}");
    let mut files = docker_save(config::ARCHITECTURE);
    files[1].1[600] ^= 1;
    let error = Place::new().import("a.tar", &tar_of(&files)).unwrap_err();
    assert!(error.to_string().contains("layer 2 of 2"), "{error}");
    files.remove(0);
    let error = Place::new().import("a.tar", &tar_of(&files)).unwrap_err();
    assert!(
        error.to_string().contains("a/layer.tar is missing"),
        "{error}"
    );
    let mut files = layout(config::ARCHITECTURE);
    let manifest = files
        .iter_mut()
        .find(|(_, bytes)| bytes.starts_with(b"{\"config\""))
        .unwrap();
    manifest.1.push(b' ');
    let error = Place::new().import("a.tar", &tar_of(&files)).unwrap_err();
    assert!(error.to_string().contains("digest"), "{error}");
}

#[test]
fn names_in_manifests_do_not_leave_the_layout() {
    let place = Place::new();
    place.file("secret", b"secret");
    let manifest = json!([{ "Config": "../secret", "Layers": [] }]);
    let files = [(
        "manifest.json".into(),
        serde_json::to_vec(&manifest).unwrap(),
    )];
    let error = place.import("a.tar", &tar_of(&files)).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    for digest in ["sha256:../../secret", "md5:x", "sha256:AB"] {
        let index = json!({ "manifests": [{ "digest": digest }] });
        place.file("bad/oci-layout", b"{}");
        place.file("bad/index.json", &serde_json::to_vec(&index).unwrap());
        let source = place.dir.path().join("bad");
        let error = import(&place.home(), "i", &source, &Silent).unwrap_err();
        assert!(error.to_string().contains("bad digest"), "{error}");
    }
}
