//! Keeps join tokens out of lists of processes.
//!
//! In: the command line. Every user of a machine can read the arguments of its processes, and only
//! their owner can read the environment. So a daemon with a token among its arguments executes the
//! same program again, as the same process, with the token in `EVERSTEP_JOIN`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::output;

const FLAG: &str = "--join";
const VARIABLE: &str = "EVERSTEP_JOIN";
/// The beginning of every token.
const TOKEN: &[u8] = b"es1.";

/// Returns if there is no token among the arguments, or if it cannot be hidden.
pub(crate) fn token(arguments: &[OsString]) {
    let Some((token, rest)) = take(arguments) else { return };
    output::say(format_args!(
        "warning: a token on the command line may be seen by every user of this machine. Pass \
         {FLAG} @FILE, or {FLAG} @- to read it from stdin"
    ));
    if let (Ok(program), Some((name, rest))) = (std::env::current_exe(), rest.split_first()) {
        let error = Command::new(program).arg0(name).args(rest).env(VARIABLE, token).exec();
        output::say(format_args!(
            "warning: the token cannot be taken off the command line: {error}"
        ));
    }
}

/// The token among a daemon's arguments, and all other arguments.
fn take(arguments: &[OsString]) -> Option<(OsString, Vec<OsString>)> {
    let verb = arguments.get(1)?.to_str()?;
    if !["coordinator", "worker"].contains(&verb) {
        return None;
    }
    let is_token = |value: &OsStr| value.as_encoded_bytes().starts_with(TOKEN);
    let mut rest = arguments.to_vec();
    let at = arguments.iter().position(|argument| {
        let text = argument.to_str().unwrap_or_default();
        text == FLAG || text.starts_with("--join=")
    })?;
    let flag = rest.remove(at);
    let token = match flag.to_str()?.strip_prefix("--join=") {
        Some(token) => token.into(),
        None if at < rest.len() => rest.remove(at),
        None => return None,
    };
    is_token(&token).then_some((token, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(line: &str) -> Option<(String, String)> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let (token, rest) = take(&arguments)?;
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        Some((text(&token), rest.iter().map(text).collect::<Vec<_>>().join(" ")))
    }

    #[test]
    fn only_a_token_is_taken_off_the_command_line() {
        let all = Some(("es1.a.b.c".into(), "everstep worker --listen x".into()));
        assert_eq!(taken("everstep worker --join es1.a.b.c --listen x"), all);
        assert_eq!(taken("everstep worker --join=es1.a.b.c --listen x"), all);
        for line in [
            "everstep worker --join @file",
            "everstep worker --join @-",
            "everstep worker --join nonsense",
            "everstep worker --join",
            "everstep token create --join es1.a.b.c",
            "everstep",
        ] {
            assert_eq!(taken(line), None, "{line}");
        }
    }
}
