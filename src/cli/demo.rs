//! The command line of `everstep demo`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::{FlagError, Overrides};

/// The flags of `everstep demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoFlags {
    /// The configuration, a TOML file. Without it, a small GPT is trained on the sources of the
    /// Rust packages that Everstep was built from
    #[arg(long, value_name = "FILE", env = "EVERSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// The flags that win over the configuration.
    #[command(flatten)]
    pub overrides: Overrides,
    /// Kill a random worker about this often, as in mtbf=20s, and start a new one for each (MTBF:
    /// mean time between failures)
    #[arg(long, value_name = "mtbf=TIME", env = "EVERSTEP_CHAOS", value_parser = Chances::parse)]
    pub chaos: Option<Chances>,
    /// Take about this long, as in 3m, instead of a number of steps: half of it with faults, half
    /// undisturbed. Some steps are measured before
    #[arg(long = "for", value_name = "TIME", env = "EVERSTEP_FOR", value_parser = duration,
        conflicts_with = "steps")]
    pub duration: Option<Duration>,
    /// Where the run's files go [default: a new directory under `runs`]
    #[arg(long, value_name = "DIR", env = "EVERSTEP_DIR")]
    pub dir: Option<PathBuf>,
    /// How long to wait for workers that the run needs. After that time the exit code is 3
    #[arg(long, value_name = "TIME", env = "EVERSTEP_WAIT", default_value = "10m",
        value_parser = wait_time)]
    pub wait: Duration,
    /// Start a new worker for every one that dies, as `--chaos` does
    #[arg(long, env = "EVERSTEP_RESPAWN", value_parser = BoolishValueParser::new())]
    pub respawn: bool,
}

/// What goes wrong by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chances {
    /// The mean time between two failures.
    pub mtbf: Duration,
}

impl Chances {
    fn parse(text: &str) -> Result<Self, FlagError> {
        let mtbf = text.strip_prefix("mtbf=").ok_or(FlagError::Chances)?;
        Ok(Self { mtbf: duration(mtbf)? })
    }
}

/// A time of at least a tenth of a second: `500ms`, `20s`, `3m`, `2h`, with decimals if need be.
pub(crate) fn duration(text: &str) -> Result<Duration, FlagError> {
    let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        _ => return Err(FlagError::Unit),
    };
    let seconds = number.parse::<f64>().map_err(|_| FlagError::Number(number.into()))? * unit;
    if !(0.1..=1e7).contains(&seconds) {
        return Err(FlagError::Span);
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// How long to wait: a time as [`duration`] reads it, or whole seconds without a unit.
pub(crate) fn wait_time(text: &str) -> Result<Duration, FlagError> {
    match text.parse::<u32>() {
        Ok(0) => Err(FlagError::Span),
        Ok(seconds) => Ok(Duration::from_secs(seconds.into())),
        Err(_) => duration(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        let second = Duration::from_secs(1);
        for (text, time) in [("20s", 20 * second), ("3m", 180 * second), ("0.5h", 1800 * second)] {
            assert_eq!(duration(text), Ok(time), "{text}");
        }
        assert_eq!(duration("250ms"), Ok(second / 4));
        for text in ["", "20", "s", "3 m", "1.2.3s", "-1s", "1ms", "1e3s", "inf"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for (text, seconds) in
            [("20", 20), ("20s", 20), ("10m", 600), ("4294967295", 4_294_967_295)]
        {
            assert_eq!(wait_time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "0", "0s", "-1", "1.5", "10 m"] {
            assert!(wait_time(text).is_err(), "{text}");
        }
        assert_eq!(Chances::parse("mtbf=20s"), Ok(Chances { mtbf: 20 * second }));
        assert!(Chances::parse("20s").is_err());
    }
}
