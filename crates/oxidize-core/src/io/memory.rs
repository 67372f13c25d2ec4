//! Memory that the system has available.

use std::path::Path;

/// Bytes that can be allocated without swapping, page cache included. `None` on systems other than Linux.
pub fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let system = field(&meminfo, "MemAvailable:")?.checked_mul(1024)?;
    Some(available_in_group(Path::new("/sys/fs/cgroup")).map_or(system, |group| group.min(system)))
}

/// Bytes that the control group of this process may still use (in a container, for example); `None`
/// without a limit.
fn available_in_group(root: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(root.join(name)).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // Page cache that the system can drop.
    let cached = field(&read("memory.stat")?, "inactive_file").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// Number after `name` in the line that begins with it.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_control_group_is_its_limit_minus_its_use() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(group.path().join(name), text).unwrap();
        assert_eq!(available_in_group(group.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        write(
            "memory.stat",
            "anon 500\ninactive_file 150\nactive_file 50\n",
        );
        assert_eq!(available_in_group(group.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(available_in_group(group.path()), Some(450));
        write("memory.max", "300\n");
        assert_eq!(available_in_group(group.path()), Some(0));
    }
}
