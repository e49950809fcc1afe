//! Help: the short one fits a screen, the long one is complete.

use crate::home::Home;

/// Every command that is there.
const COMMANDS: &[&str] = &[
    "",
    "machine",
    "machine run",
    "machine create",
    "machine start",
    "machine stop",
    "machine pause",
    "machine resume",
    "machine delete",
    "machine rename",
    "machine exec",
    "machine shell",
    "machine cp",
    "machine logs",
    "machine ls",
    "machine status",
    "machine checkpoint",
    "machine checkpoint-log",
    "machine checkpoint-diff",
    "machine tree",
    "machine checkpoint-verify",
    "machine checkpoint-export",
    "machine checkpoint-import",
    "image",
    "image import",
    "image build",
    "image ls",
    "image rm",
    "kernel",
    "kernel import",
    "kernel ls",
    "doctor",
    "completions",
];
/// Lines of a screen.
const SCREEN: usize = 40;

fn help(line: &str) -> String {
    let output = Home::new().run(line);
    assert!(output.status.success(), "{line}");
    assert!(output.stderr.is_empty(), "{line}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn short_help_fits_a_screen() {
    for command in COMMANDS {
        let text = help(&format!("{command} -h"));
        assert!(text.lines().count() <= SCREEN, "{command}: {text}");
    }
}

#[test]
fn what_a_user_reads_first() {
    insta::assert_snapshot!("help", help("--help"));
    insta::assert_snapshot!("help-machine", help("machine -h"));
    insta::assert_snapshot!("help-exec", help("machine exec --help"));
    insta::assert_snapshot!("help-create", help("machine create --help"));
    insta::assert_snapshot!("help-start", help("machine start --help"));
    insta::assert_snapshot!("help-checkpoint", help("machine checkpoint --help"));
    insta::assert_snapshot!("help-kernel-import", help("kernel import --help"));
}

#[test]
fn options_say_their_defaults() {
    // Options with a value whose default is a value; the others are off, absent or required.
    for (command, option, default) in [
        ("machine create", "--image", "`debian`"),
        ("machine create", "--mem", "1G"),
        ("machine create", "--disk", "8G"),
        ("machine create", "--cpus", "2"),
        ("machine create", "--backend", "auto"),
        ("machine create", "--workdir", "/root"),
        ("machine stop", "--timeout", "10s"),
        ("machine exec", "--user", "root"),
        ("machine exec", "--timeout", "never"),
        ("machine checkpoint", "--history", "32"),
    ] {
        let text = help(&format!("{command} --help"));
        let (_, after) = text.split_once(&format!("{option} <")).unwrap();
        let next = after.find("\n  -").unwrap_or(after.len());
        let (_, said) = after[..next].split_once("[default: ").unwrap();
        assert!(said.contains(default), "{command} {option}: {said}");
    }
}
