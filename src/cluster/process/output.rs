//! What a process prints, and what it leaves in its log.
//!
//! In: pipes and log files. Out: the line with which a process begins to listen, the lines of a
//! script for the user, and the words with which a log ends. This file knows no process.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::thread;

use serde_json::Value;
use tokio::sync::oneshot;

use crate::failure;

/// How many bytes of a log's end are shown, at most.
const TAIL: u64 = 64 << 10;
/// The first line of a Python exception in a log.
const TRACEBACK: &str = "Traceback (most recent call last):";
/// How the words begin with which a Python process dies, before the stacks of its threads.
const FATAL: &str = "Fatal Python error: ";

/// The first line of a process's output. The rest is read to its end, so that the process can
/// always write.
pub fn first_line(output: impl Read + Send + 'static) -> oneshot::Receiver<String> {
    let (sender, first) = oneshot::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let mut lines = BufReader::new(output);
        if matches!(lines.read_line(&mut line), Ok(1..)) {
            let _ = sender.send(line);
        }
        let _ = std::io::copy(&mut lines, &mut std::io::sink());
    });
    first
}

/// Prints what a script prints, line by line, until its output ends. Bytes that are no text are
/// replaced. Where `to` is closed, it takes nothing, and the script goes on.
pub fn pass_on(mut output: impl BufRead, mut to: impl Write, prefix: &str) {
    let mut line = Vec::new();
    while matches!(output.read_until(b'\n', &mut line), Ok(1..)) {
        let text = format!("{prefix}{}\n", String::from_utf8_lossy(&line).trim_end());
        let _ = to.write_all(text.as_bytes());
        line.clear();
    }
}

/// The newest exception in the log of a script, from its first line on.
pub fn traceback(log: &Path) -> Option<String> {
    let text = end_of(log)?;
    let start = text.rfind(TRACEBACK)?;
    let lines = text[start..].lines().take_while(|line| !is_of_log(line));
    Some(lines.collect::<Vec<_>>().join("\n").trim_end().to_string())
}

/// Whether a line is one of the worker's own log: it begins with a date.
fn is_of_log(line: &str) -> bool {
    let is_digit = |at: usize| line.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    (0..4).all(is_digit) && line.as_bytes().get(4) == Some(&b'-')
}

/// The last exception, stacks or block of a log, or its last line. Of a line of JSON, its message.
pub fn tail(log: &Path) -> Option<String> {
    let text = end_of(log)?;
    let last = text.lines().next_back().filter(|line| !line.is_empty())?;
    if let Ok(Value::Object(line)) = serde_json::from_str(last) {
        return line.get("fields")?.get("message")?.as_str().map(str::to_string);
    }
    let error = text.rfind("error: ").filter(|at| !text[..*at].ends_with("Fatal Python "));
    let block = error.max(failure::last_block(&text));
    let start = text.rfind(TRACEBACK).max(text.rfind(FATAL)).max(block);
    Some(start.map_or(last, |start| text[start..].trim_end()).to_string())
}

/// The last bytes of a log, as text.
fn end_of(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_ends_with_its_last_exception_or_error_or_line() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let tail_of = |text: &str| {
            std::fs::write(file.path(), text).expect("written");
            tail(file.path())
        };
        let exception = "Traceback (most recent call last):\n  File \"a.py\"\nValueError: no";
        assert_eq!(tail_of(&format!("info\n{exception}\n")).as_deref(), Some(exception));
        assert_eq!(traceback(file.path()).as_deref(), Some(exception));
        tail_of(&format!("{exception}\n2026-11-26T00:00:00Z ERROR the run fails\n"));
        assert_eq!(traceback(file.path()).as_deref(), Some(exception));
        assert_eq!(
            tail_of("info\nerror: no\n  why: so\n").as_deref(),
            Some("error: no\n  why: so")
        );
        assert_eq!(traceback(file.path()), None);
        let told = "it has stopped\n  where: a\n    why: so\n         and so";
        let later = format!("error: no\n  why: so\ninfo\n{told}\n");
        assert_eq!(tail_of(&later).as_deref(), Some(told));
        let fatal = "Fatal Python error: Aborted\n\nThread 0x1:\n  File \"a.py\", line 3 in f";
        assert_eq!(tail_of(&format!("info\n{fatal}\n")).as_deref(), Some(fatal));
        assert_eq!(tail_of("one\ntwo\n").as_deref(), Some("two"));
        assert_eq!(tail_of(""), None);
        let line = r#"{"fields": {"message": "the end"}}"#;
        assert_eq!(tail_of(line).as_deref(), Some("the end"));
    }
}
