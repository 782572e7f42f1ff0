//! How a run's directory keeps the script of its run, so that the run can go on.
//!
//! `script.json` has the working directory and the command. Keys are only ever added to it. The
//! number of threads, and digests of all that decides bits, are in the run's specification:
//! processes that state another run are refused. The directory keeps no copy of the script's files.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use everstep_kernels::device::DeviceChoice;
use everstep_transport::protocol::RunSpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{is_of_script, of, threads};
use crate::cluster::{Directory, InstructionSet, Script};
use crate::config;
use crate::failure::{Exit, Failure};
use crate::file_format;

/// The file in a run's directory.
const FILE: &str = "script.json";

/// The number of the file's format.
const FORMAT: u64 = 1;

/// What starts the processes of a script again.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct KeptScript {
    /// The number of the file's format. A file without it is of the first.
    #[serde(default = "first_format")]
    format: u64,
    /// The working directory of the processes.
    directory: PathBuf,
    /// The script, and its arguments.
    command: Vec<String>,
    /// The instructions that its mathematics libraries use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    isa: Option<InstructionSet>,
    /// The GPUs that its processes see, as `--device` names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<String>,
}

impl KeptScript {
    /// The script that a run's directory keeps. None if it keeps none.
    fn read(dir: &Path) -> Result<Option<Self>, Failure> {
        let path = dir.join(FILE);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| unusable(&path, error.to_string()))?,
        };
        let unreadable = |error| unusable(&path, format!("it cannot be read: {error}"));
        let kept: Value = serde_json::from_str(&text).map_err(unreadable)?;
        file_format::check(&kept, FORMAT).map_err(|later| unusable(&path, later.to_string()))?;
        Ok(Some(serde_json::from_value(kept).map_err(unreadable)?))
    }

    fn script(self, threads: u32) -> Script {
        let command = self.command.into_iter().map(Into::into).collect();
        let device = self.device.and_then(|device| device.parse().ok());
        Script { directory: Some(self.directory), device, ..of(command, threads, self.isa) }
    }
}

fn first_format() -> u64 {
    1
}

/// The script of this command, in the working directory of this process.
///
/// # Errors
/// If the directory of a run could not keep it.
pub(crate) fn here(
    command: &[OsString],
    threads: u32,
    isa: Option<InstructionSet>,
) -> Result<Script, Failure> {
    let refused = |why: String| {
        Failure::new(Exit::Usage, "the script cannot be launched")
            .at(command.first().map_or(Path::new(""), Path::new).display())
            .because(why)
    };
    let directory = std::env::current_dir();
    let directory = directory
        .map_err(|error| refused(format!("the working directory has no path: {error}")))?;
    if directory.to_str().is_none() || command.iter().any(|word| word.to_str().is_none()) {
        let why = "its name, an argument or the working directory is not UTF-8, and the run's \
                   directory keeps all three";
        return Err(refused(why.into()));
    }
    Ok(Script { directory: Some(directory), ..of(command.to_vec(), threads, isa) })
}

/// As [`here`], for a script that is a file here.
///
/// # Errors
/// If it is none.
pub(crate) fn found_here(
    command: &[OsString],
    threads: u32,
    isa: Option<InstructionSet>,
) -> Result<Script, Failure> {
    let path = command.first().map_or(Path::new(""), Path::new);
    if !path.is_file() {
        return Err(Failure::new(Exit::Usage, "the script cannot be launched")
            .at(path.display())
            .because("there is no such file")
            .next("name a Python script, and after it the script's own arguments"));
    }
    here(command, threads, isa)
}

/// Writes down the script of the run that the directory holds, or will hold.
pub(crate) fn keep(directory: &Directory, script: &Script) -> Result<(), Failure> {
    let command = script.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let (directory_of_script, isa) = (script.directory.clone().unwrap_or_default(), script.isa);
    let device = script.device.as_ref().map(DeviceChoice::to_string);
    let kept = KeptScript { format: FORMAT, directory: directory_of_script, command, isa, device };
    let text = serde_json::to_string_pretty(&kept).expect("a command is plain data") + "\n";
    Ok(directory.write(FILE, text.as_bytes())?)
}

/// Whether a run's directory keeps a script.
pub(crate) fn is_kept(dir: &Path) -> bool {
    dir.join(FILE).exists()
}

/// The script of a run that goes on: the `stated` command, else the one that `dir` keeps. Its
/// processes must state this run. None if the run is no script's.
pub(crate) fn of_kept_run(
    run: &RunSpec,
    dir: &Path,
    stated: &[OsString],
) -> Result<Option<Script>, Failure> {
    if !is_of_script(run) {
        return match stated.first() {
            None => Ok(None),
            Some(name) => Err(unusable(Path::new(name), "the run is of no script".into())),
        };
    }
    let script = match (stated, KeptScript::read(dir)?) {
        ([], None) => {
            let why = "there is no such file to name the run's script";
            return Err(unusable(&dir.join(FILE), why.into()));
        }
        ([], Some(kept)) if kept.command.is_empty() => {
            return Err(unusable(&dir.join(FILE), "it names no script".into()));
        }
        ([], Some(kept)) => kept.script(threads(run)),
        (stated, Some(kept)) => {
            let device = kept.device.and_then(|device| device.parse().ok());
            Script { device, ..here(stated, threads(run), kept.isa)? }
        }
        (stated, None) => here(stated, threads(run), None)?,
    };
    let file = script.directory.clone().unwrap_or_default().join(&script.command[0]);
    if !file.is_file() {
        return Err(unusable(&file, "there is no such file".into()));
    }
    Ok(Some(Script { stated: Some(Box::new(config::part_of_script(run))), ..script }))
}

fn unusable(place: &Path, why: String) -> Failure {
    Failure::new(Exit::Usage, "the run cannot go on with its script")
        .at(place.display())
        .because(why)
        .next("name the script and its arguments at the end of the command: … -- SCRIPT ARGS")
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;
    use everstep_transport::protocol::run::OptionValue;

    use super::super::KIND;
    use super::*;

    fn run_of_script() -> RunSpec {
        let mut run = exemplars::run();
        run.model.kind = KIND.into();
        run.model.options.0.insert("threads".into(), OptionValue::Integer(3));
        run
    }

    #[test]
    fn a_run_goes_on_with_the_script_that_its_directory_keeps() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().join("run");
        let directory = Directory::claim(&at, &exemplars::run()).expect("a directory");
        let (run, train) = (run_of_script(), folder.path().join("train.py"));
        let told = |stated: &[OsString]| match of_kept_run(&run, &at, stated) {
            Ok(_) => panic!("there is no script"),
            Err(failure) => failure.to_string(),
        };
        assert!(told(&[]).contains("script.json"), "{}", told(&[]));
        let isa = Some(InstructionSet::Avx2);
        let launched = here(&[train.clone().into(), "--lr".into()], 1, isa).expect("a script");
        let launched = Script { device: "cuda:1".parse().ok(), ..launched };
        keep(&directory, &launched).expect("kept");
        assert!(told(&[]).contains("no such file"), "{}", told(&[]));
        fs::write(&train, "").expect("written");
        let script = of_kept_run(&run, &at, &[]).expect("a script").expect("a script's run");
        assert_eq!((script.threads, &script.command), (3, &launched.command));
        assert_eq!((script.directory, script.isa), (launched.directory, isa));
        assert_eq!(script.device, launched.device);
        let stated = script.stated.expect("the run that it must state");
        assert_eq!((stated.start_workers, &stated.checkpoint), (1, &None));
    }

    #[test]
    fn i23_a_script_file_is_read_by_its_number_or_refused_by_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = |format: &str| {
            let text = format!(r#"{{ {format} "directory": "/", "command": ["a.py"] }}"#);
            fs::write(folder.path().join(FILE), text).expect("written");
            KeptScript::read(folder.path())
        };
        for known in ["", r#""format": 1,"#] {
            let kept = read(known).expect("a script of this build").expect("a file");
            assert_eq!((kept.format, kept.command), (1, vec!["a.py".to_string()]), "{known}");
        }
        let words = read(r#""format": 9,"#).expect_err("a later format").to_string();
        assert!(words.contains("script.json") && words.contains("it has format 9"), "{words}");
    }

    #[test]
    fn a_script_may_be_stated_anew_and_only_for_the_run_of_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let moved = folder.path().join("moved.py");
        fs::write(&moved, "").expect("written");
        let stated = [OsString::from(moved)];
        let run = run_of_script();
        let script = of_kept_run(&run, folder.path(), &stated).expect("a script");
        assert_eq!(script.expect("a script's run").command, stated);
        assert_eq!(of_kept_run(&exemplars::run(), folder.path(), &[]), Ok(None));
        let told = of_kept_run(&exemplars::run(), folder.path(), &stated).expect_err("refused");
        assert!(told.to_string().contains("the run is of no script"), "{told}");
    }
}
