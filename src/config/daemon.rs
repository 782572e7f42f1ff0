//! The settings of a daemon: flags, then `EVERSTEP_…` variables, then a file.
//!
//! In: a command line. Out: the same, with the flags added that only the file of `--config` states.
//! So a daemon's flags have one meaning, from any source. The file may state a run, too: `everstep
//! train` reads that.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::ConfigError;
use super::error::ValueSource;
use super::keys::{Keys, name, section};
use super::value::CommaList;

/// The keys that a file may have for each daemon. Settings that a coordinator uses once in its
/// life, to found a cluster or to join one, are flags only.
const KEYS: [&str; 12] = [
    "coordinator.dir",
    "coordinator.listen",
    "coordinator.http",
    "coordinator.http_token",
    "coordinator.http_read_token",
    "coordinator.log_format",
    "worker.coordinators",
    "worker.join",
    "worker.listen",
    "worker.zone",
    "worker.dir",
    "worker.log_format",
];
/// The sections of a run's file.
const RUN: [&str; 8] =
    ["run", "model", "data", "batch", "optimizer", "wire", "redundancy", "checkpoint"];

/// The command line with all stated settings, if it starts a daemon. `variable` is the environment.
///
/// # Errors
/// [`ConfigError`]: the file cannot be used.
pub fn complete(
    mut given: Vec<OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<OsString>, ConfigError> {
    let Some(daemon) = daemon(&given) else { return Ok(given) };
    let path = value(&given, "--config").or_else(|| variable("EVERSTEP_CONFIG"));
    let Some(path) = path.map(PathBuf::from) else { return Ok(given) };
    let text = std::fs::read_to_string(&path).map_err(|source| ConfigError {
        place: ValueSource::File(path.clone()),
        problem: format!("the configuration file cannot be read: {source}"),
        advice: "name a TOML file that exists with --config, or leave --config out".into(),
    })?;
    let mut keys = Keys::parse(Some((&path, &text)))?;
    keys.leave_out(&RUN);
    let mut added = Vec::new();
    for key in KEYS {
        let Some(CommaList(stated)) = keys.read(key)? else { continue };
        let flag = format!("--{}", name(key).replace('_', "-"));
        let is_set = variable(&format!("EVERSTEP_{}", name(key).to_uppercase())).is_some();
        if section(key) == daemon && value(&given, &flag).is_none() && !is_set {
            added.push(format!("{flag}={stated}").into());
        }
    }
    keys.reject_unknown()?;
    given.extend(added);
    Ok(given)
}

/// The daemon that the command line starts.
fn daemon(given: &[OsString]) -> Option<&'static str> {
    let verb = given.get(1)?.to_str()?;
    let flags = given.get(2).is_none_or(|next| next.as_encoded_bytes().starts_with(b"-"));
    ["coordinator", "worker"].into_iter().find(|daemon| *daemon == verb && flags)
}

/// The value of a flag on the command line.
fn value(given: &[OsString], flag: &str) -> Option<OsString> {
    let mut rest = given.iter();
    while let Some(argument) = rest.next() {
        if argument == OsStr::new(flag) {
            return rest.next().cloned();
        }
        if let Some(value) =
            argument.to_str().and_then(|it| it.strip_prefix(flag)?.strip_prefix('='))
        {
            return Some(value.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(given: &[&str], file: &str, set: &[&str]) -> Result<Vec<String>, ConfigError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("daemon.toml");
        std::fs::write(&path, file).expect("written");
        let config = format!("--config={}", path.display());
        let line = given.iter().map(OsString::from).chain([config.into()]).collect();
        let variable = |name: &str| set.contains(&name).then(|| "set".into());
        let all = complete(line, variable)?;
        let added = all[given.len() + 1..].iter();
        Ok(added.map(|it| it.to_string_lossy().into_owned()).collect())
    }

    const FILE: &str = "[run]\nsteps = 3\n[worker]\nzone = \"a\"\nlisten = \"10.0.0.7:1\"\n\
                        coordinators = [\"a:1\", \"b:2\"]\n[coordinator]\nhttp_token = \"t\"\n";

    #[test]
    fn a_flag_wins_over_its_variable_and_that_over_the_file() {
        let all = ["--coordinators=a:1,b:2", "--listen=10.0.0.7:1", "--zone=a"];
        assert_eq!(completed(&["everstep", "worker"], FILE, &[]).expect("sound"), all);
        let flags = ["everstep", "worker", "--listen", "10.0.0.8:1"];
        let left = completed(&flags, FILE, &["EVERSTEP_ZONE"]).expect("sound");
        assert_eq!(left, ["--coordinators=a:1,b:2"]);
        let flags = ["everstep", "worker", "--zone=b", "--listen=x", "--coordinators=c:3"];
        assert_eq!(completed(&flags, FILE, &[]).expect("sound"), [""; 0]);
        let other = completed(&["everstep", "coordinator"], FILE, &[]).expect("sound");
        assert_eq!(other, ["--http-token=t"]);
    }

    #[test]
    fn only_daemons_are_told() {
        for given in [&["everstep", "train"][..], &["everstep", "worker", "drain"]] {
            assert_eq!(completed(given, FILE, &[]).expect("not read"), [""; 0]);
        }
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_line_and_the_nearest_one() {
        for (file, place, words) in [
            ("[worker]\n\nlissen = \"x\"", "daemon.toml:3", "did you mean \"worker.listen\"?"),
            ("[worcer]\nzone = \"x\"", "daemon.toml:1", "did you mean [worker]?"),
            ("[worker]\nzone = 7", "daemon.toml:2", "but must be text in quotes, or a list of"),
            (
                "[coordinator]\nbootstrap = \"x\"",
                "daemon.toml:2",
                "dir, http, http_read_token, http_token",
            ),
        ] {
            let told = completed(&["everstep", "worker"], file, &[]).expect_err(file).to_string();
            assert!(told.contains(place) && told.contains(words), "{told}");
        }
    }
}
