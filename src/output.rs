//! What a verb says: data on stdout, commentary on stderr.
//!
//! A reader that has gone, as in `everstep train | head -1`, has read what it wanted: that is no
//! error, and no reason to stop.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use crate::failure::{Exit, Failure};

/// Prints data, and ends the line.
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

/// Says a line of commentary. It is lost if nobody can hear it.
pub(crate) fn say(commentary: impl Display) {
    let _ = writeln!(std::io::stderr(), "{commentary}");
}
