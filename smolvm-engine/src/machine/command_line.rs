//! The kernel's command line of a machine.

/// The agent's word for a host name on the kernel's command line.
const HOSTNAME: &str = "smolvm.hostname=";

/// The command line with this host name, which holds until an identity is set.
pub(crate) fn with_hostname(command_line: &str, hostname: &str) -> String {
    let own = format!("{HOSTNAME}{hostname}");
    let others = words_but_hostname(command_line);
    others.chain([&*own]).collect::<Vec<_>>().join(" ")
}

/// The command line of no machine in particular.
pub(crate) fn without_hostname(command_line: &str) -> String {
    let words: Vec<_> = words_but_hostname(command_line).collect();
    words.join(" ")
}

fn words_but_hostname(command_line: &str) -> impl Iterator<Item = &str> {
    command_line
        .split_whitespace()
        .filter(|word| !word.starts_with(HOSTNAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_takes_the_place_of_another() {
        let first = with_hostname("console=ttyS0  panic=-1", "a");
        assert_eq!(first, "console=ttyS0 panic=-1 smolvm.hostname=a");
        let second = with_hostname(&format!("{first} quiet"), "b");
        assert_eq!(second, "console=ttyS0 panic=-1 quiet smolvm.hostname=b");
        assert_eq!(without_hostname(&second), "console=ttyS0 panic=-1 quiet");
    }
}
