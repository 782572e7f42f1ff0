//! The output of a verb: data on stdout, commentary on stderr.
//!
//! A reader that has gone, as in `everstep train | head -1`, has read what it wanted. That is no
//! error, and no reason to stop.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use crate::failure::{Exit, Failure};

/// Prints data and a newline.
pub(crate) fn print(data: impl Display) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{data}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let failed = Failure::new(Exit::Failed, "the result cannot be printed");
            Err(failed.at("stdout").because(error))
        }
        _ => Ok(()),
    }
}

/// Prints a line of commentary. A failure to print it is ignored.
pub(crate) fn say(commentary: impl Display) {
    let _ = writeln!(std::io::stderr(), "{commentary}");
}

/// Text from other processes, safe for a terminal: control characters are escaped.
pub(crate) fn plain(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Rows in columns for people, each as wide as its content.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> =
        rows.iter().map(|row| std::array::from_fn(|at| plain(&row[at]))).collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_steer_a_terminal_is_shown_escaped() {
        assert_eq!(plain("a\u{1b}]0;x\u{7}\nrun 9"), r"a\u{1b}]0;x\u{7}\nrun 9");
        assert_eq!(plain("\u{9b}31m é"), r"\u{9b}31m é");
        assert_eq!(table(&[["a\nb".to_string()]]), r"a\nb");
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = [["id", "name"], ["1", "a"], ["12345", ""]];
        let rows = rows.map(|row| row.map(str::to_string));
        assert_eq!(table(&rows), "id     name\n1      a\n12345");
    }
}
