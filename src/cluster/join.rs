//! The command with which a user adds another worker to the cluster.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::Path;

use super::Directory;
use super::options::{Program, Script};
use super::process::{Daemons, joined};

/// The command, ready to be pasted into another shell of this machine.
pub(super) fn command(
    daemons: &Daemons,
    directory: &Directory,
    coordinators: &[SocketAddr],
) -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let Program { executable, arguments } = &daemons.program;
    let program = quoted(&callable(executable, &path).to_string_lossy());
    let program = [program].into_iter().chain(arguments.iter().map(word)).collect::<Vec<_>>();
    let program = program.join(" ");
    let token = directory.path().join("join.token");
    let token = quoted(&format!("@{}", token.display()));
    let dir = quoted(&directory.path().display().to_string());
    let coordinators = joined(coordinators);
    let begin = daemons.script.as_ref().map_or(String::new(), change_of_directory);
    let script = daemons.script.as_ref().map_or(String::new(), of_script);
    let command = format!("{program} worker --coordinators {coordinators} --join {token}");
    format!("{begin}{command} --dir {dir}{script}")
}

/// The begin of the command of a worker whose script has a working directory of its own.
fn change_of_directory(script: &Script) -> String {
    let here = std::env::current_dir().ok();
    let directory = script.directory.as_ref().filter(|directory| Some(*directory) != here.as_ref());
    let quoted = directory.map(|directory| quoted(&directory.to_string_lossy()));
    quoted.map_or(String::new(), |directory| format!("cd {directory} && "))
}

/// The end of the command of a worker that runs a script.
fn of_script(script: &Script) -> String {
    let words: Vec<_> = script.command.iter().map(word).collect();
    let isa = script.isa.map_or(String::new(), |isa| format!(" --isa {}", isa.name()));
    format!(" --threads {}{isa} -- {}", script.threads, words.join(" "))
}

fn word(argument: &OsString) -> String {
    let text: Cow<'_, str> = argument.to_string_lossy();
    quoted(&text)
}

/// The program's bare name, if a shell with this `PATH` finds the program by it. Else its path.
fn callable<'a>(program: &'a Path, path: &OsStr) -> &'a Path {
    let Some(name) = program.file_name() else { return program };
    let same = |found: &Path| found.canonicalize().ok() == program.canonicalize().ok();
    let first = std::env::split_paths(path).map(|at| at.join(name)).find(|found| found.is_file());
    if first.is_some_and(|found| same(&found)) { Path::new(name) } else { program }
}

/// A word, quoted if a shell would split or change it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    if word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::InstructionSet;

    #[test]
    fn a_program_has_its_bare_name_only_where_a_shell_finds_it() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let programs = folders.each_ref().map(|folder| folder.path().join("everstep"));
        programs.iter().for_each(|program| std::fs::write(program, "").expect("a file"));
        let path = std::env::join_paths(folders.iter().map(|folder| folder.path()));
        let path = path.expect("paths without colons");
        assert_eq!(callable(&programs[0], &path), Path::new("everstep"));
        assert_eq!(callable(&programs[1], &path), programs[1], "another comes first");
        assert_eq!(callable(&programs[0], OsStr::new("")), programs[0]);
    }

    #[test]
    fn a_worker_of_a_script_joins_with_the_script_and_its_arguments() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = everstep_transport::protocol::exemplars::run();
        let directory = Directory::claim(&folder.path().join("run"), &run).expect("a directory");
        let program = Program {
            executable: "/none/python".into(),
            arguments: ["-m", "everstep"].map(Into::into).into(),
        };
        let command = ["a b.py", "--lr"].map(Into::into).into();
        let isa = Some(InstructionSet::Avx2);
        let mut script =
            Script { interpreter: "python".into(), command, threads: 2, isa, ..Script::default() };
        let daemons_of = |script: &Script| Daemons {
            program: program.clone(),
            script: Some(script.clone()),
            by_hand: false,
        };
        let address = ["127.0.0.1:7".parse().expect("an address")];
        let told = super::command(&daemons_of(&script), &directory, &address);
        let begin = "/none/python -m everstep worker --coordinators 127.0.0.1:7 --join ";
        assert!(told.starts_with(begin), "{told}");
        assert!(told.ends_with(" --threads 2 --isa avx2 -- 'a b.py' --lr"), "{told}");
        script.directory = std::env::current_dir().ok();
        assert_eq!(super::command(&daemons_of(&script), &directory, &address), told);
        script.directory = Some("/else where".into());
        let elsewhere = super::command(&daemons_of(&script), &directory, &address);
        assert_eq!(elsewhere, format!("cd '/else where' && {told}"));
    }

    #[test]
    fn words_that_a_shell_would_take_apart_are_quoted() {
        assert_eq!(quoted("@/runs/a-001/join.token"), "@/runs/a-001/join.token");
        assert_eq!(quoted("@/my runs/it's"), r"'@/my runs/it'\''s'");
    }
}
