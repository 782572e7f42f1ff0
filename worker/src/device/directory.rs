//! A worker's directory. It may be on a file server that is away, and then an operation there does
//! not return.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crate::registry::BuildError;
use crate::step::event::DIRECTORY_ANSWER_TIMEOUT;

type Act = Box<dyn FnOnce(&Path) + Send>;

/// A directory, with a thread that works there. The thread does one thing after the other, so a
/// directory that does not answer stops one thread, however often a worker tries.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    acts: Sender<Act>,
}

impl Directory {
    /// The directory at a path. Its thread ends with the last copy of this.
    pub fn new(path: PathBuf) -> Self {
        let (acts, received) = channel::<Act>();
        let own = path.clone();
        let work = move || received.into_iter().for_each(|act| act(&own));
        let builder = thread::Builder::new().name("directory".into());
        builder.spawn(work).expect("the system gives a process a thread");
        Self { path, acts }
    }

    /// Does something in the directory, and waits for its result for a while.
    ///
    /// # Errors
    /// [`BuildError::Place`] if there is no result in time. The work is still done once the
    /// directory answers.
    pub fn attempt<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> Result<T, BuildError> {
        self.within(DIRECTORY_ANSWER_TIMEOUT, act)
    }

    fn within<T: Send + 'static>(
        &self,
        time: Duration,
        act: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> Result<T, BuildError> {
        let (answer, answered) = channel();
        let act = move |path: &Path| {
            let _ = answer.send(act(path)); // an error means that nothing waits for it any more
        };
        let _ = self.acts.send(Box::new(act)); // the thread ends only after this
        answered.recv_timeout(time).map_err(|_| {
            let (path, seconds) = (self.path.display(), time.as_secs());
            let reason = format!("the directory {path} has not answered for {seconds} s");
            BuildError::Place(reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::outcome::Inability;

    use super::*;

    #[test]
    fn a_directory_that_does_not_answer_is_an_error_of_the_place_and_is_tried_again() {
        let directory = Directory::new("/runs".into());
        let path = directory.attempt(Path::to_path_buf);
        assert_eq!(path, Ok("/runs".into()));
        let (goes_on, waits) = channel::<()>();
        let waited = directory.within(Duration::ZERO, move |_| waits.recv().is_ok());
        let error = waited.expect_err("it waits");
        assert_eq!(error.inability(), Inability::Place);
        assert!(error.to_string().contains("/runs has not answered"), "{error}");
        goes_on.send(()).expect("it waits");
        assert_eq!(directory.attempt(|_| 1), Ok(1));
    }
}
