//! Forms of output: JSON, tables, streams.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::home::Home;

fn objects(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect()
}

#[test]
fn errors_are_one_object_on_stderr() {
    let home = Home::new();
    for (line, code, word) in [
        ("--json machine status --name agent", 1, "not_found"),
        ("machine exec --json --name agent -- true", 125, "not_found"),
        ("machine status --json", 1, "invalid"),
        ("machine port", 2, "not_available"),
        ("--json machine fly", 2, "usage"),
        ("--json machine delete --all", 0, ""),
    ] {
        let line = if line.contains("port") {
            format!("--json {line}")
        } else {
            line.to_owned()
        };
        let output = home.run(&line);
        assert_eq!(output.status.code(), Some(code), "{line}");
        assert!(output.stdout.is_empty(), "{line}");
        if word.is_empty() {
            continue;
        }
        let errors = objects(&output.stderr);
        assert_eq!(errors.len(), 1, "{line}");
        assert_eq!(errors[0]["v"], 1, "{line}");
        assert_eq!(errors[0]["error"]["code"], word, "{line}");
        assert!(errors[0]["error"]["message"].is_string(), "{line}");
        assert!(errors[0]["error"].get("hint").is_some(), "{line}");
    }
}

#[test]
fn the_version_is_an_object_too() {
    let output = Home::new().run("--version --json");
    assert!(output.status.success() && output.stderr.is_empty());
    let version = &objects(&output.stdout)[0]["version"];
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_root_directory_becomes_an_image() {
    let home = Home::new();
    fs::create_dir_all(home.path().join("root/etc")).unwrap();
    fs::write(home.path().join("root/etc/motd"), "hello\n").unwrap();
    let imported = home.run("image import mine ./root --json");
    assert!(imported.status.success(), "{imported:?}");
    assert_eq!(objects(&imported.stdout)[0]["name"], "mine");
    let again = home.run("image import mine ./root");
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("smolvm image rm mine"));

    let list = objects(&home.run("image ls --json").stdout);
    assert_eq!((list.len(), &list[0]["v"]), (1, &Value::from(1)));
    let table = String::from_utf8(home.run("image ls").stdout).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("NAME  DISK") && lines[1].starts_with("mine  "));
    // Nothing runs without a kernel, and that is said.
    let start = home.run("machine start --name agent");
    let stderr = String::from_utf8_lossy(&start.stderr).into_owned();
    assert!(stderr.contains("smolvm kernel import default"), "{stderr}");
    assert!(home.run("image rm mine").status.success());
    assert!(home.run("image ls --json").stdout.is_empty());
}

#[test]
fn reading_commands_make_nothing() {
    let home = Home::new();
    for line in ["machine ls", "image ls", "kernel ls", "machine ls --json"] {
        assert!(home.run(line).status.success(), "{line}");
    }
    home.run("doctor");
    assert!(!home.exists());
}

#[test]
fn doctor_says_yes_exactly_when_a_backend_can_run() {
    let home = Home::new();
    let output = home.run("doctor --json");
    let findings = objects(&output.stdout);
    let can_run = findings
        .iter()
        .any(|finding| finding["what"] == "backend" && finding["good"] == true);
    assert_eq!(output.status.success(), can_run);
    let backends = findings.iter().filter(|f| f["what"] == "backend").count();
    assert_eq!(backends, 3);
    for finding in &findings {
        assert!(
            finding["found"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
    }
}

#[test]
fn completions_are_scripts() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let output = home.run(&format!("completions {shell}"));
        assert!(output.status.success());
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(script.contains("smolvm"), "{shell}");
    }
}

/// What bash offers for the last of these words.
fn offered(home: &Home, words: &[&str]) -> Vec<String> {
    let program = assert_cmd::cargo::cargo_bin("smolvm");
    let drive = r#"
        export PATH="$1:$PATH"; shift
        source <(smolvm completions bash)
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
        _clap_complete_smolvm smolvm "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let output = Command::new("bash")
        .args(["--norc", "-c", drive, "bash"])
        .arg(program.parent().unwrap())
        .args(words)
        .env("SMOLVM_HOME", home.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut offered: Vec<String> = text
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    offered.sort();
    offered
}

#[test]
fn a_shell_offers_commands_and_what_there_is() {
    let home = Home::new();
    for name in ["agent", "agent-2", "worker"] {
        std::fs::create_dir_all(home.path().join("machines").join(name)).unwrap();
    }
    assert_eq!(
        offered(&home, &["smolvm", "machine", "checkpoint-v"]),
        ["checkpoint-verify"]
    );
    let commands = offered(&home, &["smolvm", "machine", ""]);
    assert!(commands.contains(&"undo".to_owned()));
    // Neither what is internal nor what no version has yet.
    for never in ["__supervisor", "port", "grants"] {
        assert!(!commands.contains(&never.to_owned()), "{never}");
    }
    assert_eq!(offered(&home, &["smolvm", "sta"]), ["start", "status"]);
    for before in [
        &["smolvm", "machine", "start"][..],
        &["smolvm", "stop"],
        &["smolvm", "machine", "exec", "-n"],
        &["smolvm", "exec"],
        &["smolvm", "machine", "branch", "--from"],
    ] {
        let words = [before, &["ag"]].concat();
        assert_eq!(offered(&home, &words), ["agent", "agent-2"], "{before:?}");
    }
    // A new name is the user's to find, and the words of a command are the guest's.
    assert_eq!(offered(&home, &["smolvm", "create", "--name", "ag"]), [""]);
    assert_eq!(offered(&home, &["smolvm", "exec", "agent", "ag"]), [""]);
    assert_eq!(
        offered(&home, &["smolvm", "create", "--backend", "s"]),
        ["soft"]
    );
    assert_eq!(offered(&home, &["smolvm", "cp", "wor"]), ["worker:/"]);
    // Of a machine that does not run nothing is known, and nothing waits for it.
    assert_eq!(offered(&home, &["smolvm", "cp", "worker:/et"]), [""]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("smolvm"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Gone before anything is written, or after a pipe's worth: never a message.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty());
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_name_may_come_from_the_environment() {
    let home = Home::new();
    let output = home
        .command("machine status")
        .env("SMOLVM_MACHINE_NAME", "from-outside")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("from-outside"));
    let backend = home
        .command("machine create --name a")
        .env("SMOLVM_BACKEND", "cloud")
        .output()
        .unwrap();
    assert_eq!(backend.status.code(), Some(2));
}
