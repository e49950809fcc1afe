//! Errors say what was tried, on what, why it failed, and what to type next.

use std::fs;

use crate::home::Home;

#[test]
fn refusals_without_machines() {
    let home = Home::new();
    let lines = [
        "machine create --name agent",
        "machine start",
        "machine start --name agent",
        "machine stop --name agent",
        "machine status",
        "machine delete --name agent -f",
        "machine rename --name agent other",
        "machine exec --name agent -- true",
        "machine exec -- true",
        "machine shell --name agent",
        "machine run -- true",
        "machine logs --name agent",
        "machine cp agent:/etc/hostname .",
        "machine branch --from agent --name other",
        "machine checkpoint-delete ./missing.checkpoint -f",
        "machine checkpoint-delete c4c23a7c -f",
        "machine checkpoint-prune --store ./missing",
        "df --store ./missing",
        "image rm mine",
        "image import ../x root.tar",
        "image import mine absent.tar",
        "kernel import mine ./absent.deb",
    ];
    let transcripts: Vec<String> = lines.iter().map(|line| home.transcript(line)).collect();
    insta::assert_snapshot!("refusals", transcripts.join("\n\n"));
}

#[test]
fn wrong_usage() {
    let home = Home::new();
    let lines = [
        "machine create --name ../x",
        "machine create --mem 512",
        "machine create --backend cloud",
        "machine exec --name agent",
        "machine cp ./a ./b",
        "machine cp a:/x b:/y",
        "machine cp agent:file .",
        "machine cp ./a x.checkpoint@~1:/a",
        "machine checkpoint-diff x.checkpoint",
        "machine checkpoint-diff nothing@~1 nothing",
        "machine stop --timeout soon",
        "machine start --branchable --no-branchable",
        "machine create --at ~1",
        "machine branch --from agent",
        "machine branch --from agent --count 2",
        "machine fly",
    ];
    let transcripts: Vec<String> = lines.iter().map(|line| home.transcript(line)).collect();
    insta::assert_snapshot!("usage", transcripts.join("\n\n"));
    assert!(!home.exists());
}

#[test]
fn what_is_not_there_yet_is_refused() {
    let home = Home::new();
    for line in [
        "machine create -v /a:/b",
        "machine create -p 80:80",
        "machine create --net",
        "machine create --allow-host example.org",
        "machine run --net -- true",
        "machine start -p 80:80",
        "image pull debian",
        "serve --port 1",
        "mcp",
    ] {
        let output = home.run(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains("is not available yet"), "{line}: {stderr}");
        assert!(output.stdout.is_empty(), "{line}");
    }
    assert!(!home.exists());
}

#[test]
fn deleting_without_a_terminal_needs_force() {
    let home = Home::new();
    // A machine that cannot be read is a machine nevertheless.
    let machine = home.path().join("home/machines/broken");
    fs::create_dir_all(&machine).unwrap();
    fs::write(machine.join("machine.json"), "{").unwrap();
    let transcripts = [
        home.transcript("machine delete --all"),
        home.transcript("machine ls"),
        home.transcript("machine status --name broken"),
    ];
    insta::assert_snapshot!("delete-needs-force", transcripts.join("\n\n"));
    assert!(machine.exists());
}

#[test]
fn what_is_damaged_is_named_and_hides_nothing() {
    let home = Home::new();
    for (place, file) in [
        ("machines/broken", "machine.json"),
        ("images/broken", "image.json"),
        ("kernels/broken", "kernel.json"),
    ] {
        let directory = home.path().join("home").join(place);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(file), "{").unwrap();
    }
    let transcripts = [
        home.transcript("machine stop --all"),
        home.transcript("image ls"),
        home.transcript("kernel ls"),
    ];
    insta::assert_snapshot!("damaged-hides-nothing", transcripts.join("\n\n"));
}

#[test]
fn a_slip_in_a_name_makes_no_machine() {
    let home = Home::new();
    for name in ["agent", "worker"] {
        let machine = home.path().join("home/machines").join(name);
        fs::create_dir_all(&machine).unwrap();
        fs::write(machine.join("machine.json"), "{").unwrap();
    }
    let transcripts = [
        home.transcript("start agnet"),
        home.transcript("start something"),
        home.transcript("--json start agnet"),
        // Asked for, it is tried: there is no image.
        home.transcript("start something --create"),
    ];
    insta::assert_snapshot!("slip-in-a-name", transcripts.join("\n\n"));
}

#[test]
fn suggestions_name_only_what_there_is() {
    let home = Home::new();
    for (line, suggested) in [
        ("machine stat", Some("start")),
        ("machine autosav", Some("autosave")),
        ("machine tre", Some("tree")),
        ("machine branc", Some("branch")),
        ("serv", None),
        ("machine checkpoint-lo", Some("checkpoint-log")),
    ] {
        let output = home.run(line);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        match suggested {
            Some(word) => assert!(stderr.contains(word), "{line}: {stderr}"),
            None => assert!(!stderr.contains("serve"), "{stderr}"),
        }
    }
}

#[test]
fn damaged_sources_are_named() {
    let home = Home::new();
    fs::write(home.path().join("noise.tar"), [7; 5000]).unwrap();
    fs::write(home.path().join("empty.tar"), []).unwrap();
    fs::write(home.path().join("noise.deb"), [7; 5000]).unwrap();
    let lines = [
        "image import mine noise.tar",
        "image import mine empty.tar",
        "kernel import ./noise.deb",
    ];
    let transcripts: Vec<String> = lines.iter().map(|line| home.transcript(line)).collect();
    insta::assert_snapshot!("damaged", transcripts.join("\n\n"));
    let output = home.run("image ls --json");
    assert!(output.status.success() && output.stdout.is_empty());
}

#[test]
fn a_log_setting_that_is_not_understood_is_told() {
    let home = Home::new();
    for (setting, told) in [("smolvm_engine=loud", true), ("smolvm_engine=debug", false)] {
        let mut command = home.command("machine ls");
        let output = command.env("SMOLVM_LOG", setting).output().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        let found = said.contains("SMOLVM_LOG is not understood");
        assert_eq!(found, told, "{setting}: {said}");
    }
}
