//! A program that a test has started.

use std::fs;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

/// The limit of every wait of a test, far above the usual time.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A program that is killed when this is dropped. If it is a launcher, the kernel also kills all
/// that it has started.
pub struct Program {
    child: Child,
    /// The file that gets its stderr: a pipe without a reader would stop it once it is full.
    said: NamedTempFile,
}

impl Program {
    pub fn start(mut command: Command) -> Self {
        let said = NamedTempFile::new().unwrap();
        command.stdout(Stdio::null()).stderr(said.reopen().unwrap());
        Self { child: command.spawn().unwrap(), said }
    }

    /// How it ended. None while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Its stderr so far.
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
            assert!(began.elapsed() < TEST_TIMEOUT, "it does not end: {}", self.said());
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
