//! How much memory this process may still take: what the machine has free, or its control group.

use std::fs;
use std::path::Path;

/// Bytes; none where the system does not tell.
pub fn free_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let number = |name: &str| {
        let text = fs::read_to_string(Path::new("/sys/fs/cgroup").join(name)).ok()?;
        text.trim().parse::<u64>().ok() // "max" is no number: there is no limit
    };
    let group = number("memory.max")
        .zip(number("memory.current"))
        .map(|(most, taken)| most.saturating_sub(taken));
    [machine, group].into_iter().flatten().min()
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
}
