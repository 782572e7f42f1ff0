//! The memory that this process may still take, which is the free memory of its machine or of its
//! control group, and the most that it has taken.

use std::fs;
use std::path::Path;

/// The path at which a process finds its own control group (version 2).
const GROUP: &str = "/sys/fs/cgroup";

/// The free bytes. None if the system does not tell.
pub fn free_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    [machine, free_of_group(Path::new(GROUP))].into_iter().flatten().min()
}

/// The largest resident set of this process so far, bytes. 0 if the system does not tell.
pub fn peak_rss_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// The bytes that a control group may still take. A group counts pages of files that no process
/// used lately as taken, but the system frees them before anything else.
fn free_of_group(group: &Path) -> Option<u64> {
    let text = |name: &str| fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    let most = number("memory.max")?; // "max" is no number: there is no limit
    let idle = text("memory.stat").and_then(|text| inactive_files(&text)).unwrap_or(0);
    let taken = number("memory.current")?.saturating_sub(idle);
    Some(most.saturating_sub(taken))
}

/// The bytes of `inactive_file` in the text of a group's `memory.stat`.
fn inactive_files(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("inactive_file "))?.trim().parse().ok()
}

/// The bytes of `MemAvailable` in the text of `/proc/meminfo`.
fn available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_the_systems_table() {
        let text = "MemTotal:       24609860 kB\nMemAvailable:   23000001 kB\n";
        assert_eq!(available(text), Some(23_000_001 << 10));
        assert_eq!(available("MemTotal: 5 kB\n"), None);
    }

    #[test]
    fn pages_of_files_that_are_not_in_use_count_as_free_in_a_group() {
        let group = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            fs::write(group.path().join(name), text).expect("written");
        };
        assert_eq!(free_of_group(group.path()), None, "there is no group");
        write("memory.current", "900\n");
        write("memory.max", "max\n");
        assert_eq!(free_of_group(group.path()), None, "there is no limit");
        write("memory.max", "1000\n");
        assert_eq!(free_of_group(group.path()), Some(100));
        write("memory.stat", "anon 90\ninactive_anon 5\ninactive_file 700\nactive_file 20\n");
        assert_eq!(free_of_group(group.path()), Some(800));
    }
}
