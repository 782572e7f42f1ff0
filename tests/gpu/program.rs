//! A program that a test has started.

use std::fs;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

/// How long anything may take that a test waits for, far above what it takes.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Dropped, it is killed, and with a launcher all that it has started: the kernel sees to that.
pub struct Program {
    child: Child,
    /// What it says on stderr: a pipe that nobody reads would stop it once it is full.
    said: NamedTempFile,
}

impl Program {
    pub fn start(mut command: Command) -> Self {
        let said = NamedTempFile::new().unwrap();
        command.stdout(Stdio::null()).stderr(said.reopen().unwrap());
        Self { child: command.spawn().unwrap(), said }
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// What it has said so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.said.path()).unwrap()).into_owned()
    }

    /// Waits for its end.
    pub fn end(mut self) -> Output {
        let began = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Output { status, stdout: Vec::new(), stderr: self.said().into() };
            }
            assert!(began.elapsed() < PATIENCE, "it does not end: {}", self.said());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill(); // an error means that it has ended
        let _ = self.child.wait();
    }
}
