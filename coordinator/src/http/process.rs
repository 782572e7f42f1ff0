//! Figures of the coordinator's own process, as the client libraries of Prometheus read them.
//!
//! In: texts of `/proc`. Out: seconds and bytes. A system that hides `/proc` has no such figures.

use std::fs;

/// The figures of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessFigures {
    /// Seconds of all cores together, in user and system mode.
    pub(super) cpu_seconds: f64,
    /// When the process started: seconds of Unix time.
    pub(super) start_seconds: f64,
    pub(super) resident_bytes: u64,
    pub(super) virtual_bytes: u64,
    /// Files and sockets that are open.
    pub(super) open_files: u64,
}

/// The key of the size of a page in the kernel's auxiliary vector (`getauxval(3)`).
const AT_PAGESZ: u64 = 6;
/// The key of the clock ticks in a second.
const AT_CLKTCK: u64 = 17;

/// The units of the system's figures.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcUnits {
    ticks_per_second: f64,
    page_bytes: u64,
}

impl ProcUnits {
    /// The units in `/proc/self/auxv`: pairs of a key and a value, in the machine's byte order.
    fn of(auxv: &[u8]) -> Option<Self> {
        let (pairs, _) = auxv.as_chunks::<16>();
        let value = |wanted: u64| {
            pairs.iter().find_map(|pair| {
                let (key, value) = pair.split_first_chunk::<8>()?;
                let value = u64::from_ne_bytes(*value.first_chunk()?);
                (u64::from_ne_bytes(*key) == wanted && value > 0).then_some(value)
            })
        };
        let (page_bytes, ticks) = (value(AT_PAGESZ)?, value(AT_CLKTCK)?);
        Some(Self { ticks_per_second: ticks as f64, page_bytes })
    }
}

impl ProcessFigures {
    /// The figures as of now. None on a system without them.
    pub(super) fn read() -> Option<Self> {
        let units = ProcUnits::of(&fs::read("/proc/self/auxv").ok()?)?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        let system = fs::read_to_string("/proc/stat").ok()?;
        // The listing itself has one file open.
        let open_files = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64;
        Self::of(&own, &system, units).map(|figures| Self { open_files, ..figures })
    }

    /// The figures in `/proc/self/stat` and `/proc/stat`. None if a figure is missing.
    fn of(own: &str, system: &str, units: ProcUnits) -> Option<Self> {
        // The program's name may have spaces and parentheses. Fields are numbered from 1, and the
        // first one behind the name is the third.
        let (_, rest) = own.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let seconds = |ticks: u64| ticks as f64 / units.ticks_per_second;
        let boot = system.lines().find_map(|line| line.strip_prefix("btime "))?;
        let boot: u64 = boot.trim().parse().ok()?;
        Some(Self {
            cpu_seconds: seconds(field(14)?.saturating_add(field(15)?)),
            start_seconds: boot as f64 + seconds(field(22)?),
            resident_bytes: field(24)?.saturating_mul(units.page_bytes),
            virtual_bytes: field(23)?,
            open_files: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: ProcUnits = ProcUnits { ticks_per_second: 100.0, page_bytes: 4_096 };
    const OWN: &str = "42 (ever) st ep) S 1 42 42 0 -1 4194560 900 0 0 0 1250 50 0 0 20 0 9 0 \
                       300 700000 250 18446744073709551615 1 1";

    #[test]
    fn the_figures_are_those_of_the_kernel_s_texts() {
        let system = "cpu  1 2 3\nintr 5\nbtime 1700000000\nprocesses 9\n";
        let figures = ProcessFigures {
            cpu_seconds: 13.0,
            start_seconds: 1_700_000_003.0,
            resident_bytes: 250 * 4_096,
            virtual_bytes: 700_000,
            open_files: 0,
        };
        assert_eq!(ProcessFigures::of(OWN, system, UNITS), Some(figures));
    }

    #[test]
    fn texts_without_a_figure_give_none() {
        let auxv = [17_u64, 100, 6, 4_096, 0, 0].map(u64::to_ne_bytes).concat();
        assert_eq!(ProcUnits::of(&auxv), Some(UNITS));
        assert_eq!(ProcUnits::of(&auxv[..31]), None);
        for (own, system) in [("", "btime 1"), (OWN, "cpu 1"), ("1 (a) S 1 2", "btime 1")] {
            assert_eq!(ProcessFigures::of(own, system, UNITS), None);
        }
    }

    #[test]
    fn this_process_has_memory_and_open_files_and_began_before_now() {
        let figures = ProcessFigures::read().expect("Linux has /proc");
        assert!(figures.resident_bytes > 1 << 20 && figures.open_files > 2, "{figures:?}");
        assert!(figures.virtual_bytes >= figures.resident_bytes, "{figures:?}");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.expect("after 1970").as_secs_f64();
        assert!(figures.start_seconds <= now + 2.0 && figures.cpu_seconds >= 0.0, "{figures:?}");
    }
}
