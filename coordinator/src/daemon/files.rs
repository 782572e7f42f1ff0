//! What a coordinator keeps in its directory: the cluster's identity, and where its history is.
//!
//! `authority/` is the certificate authority, `join.token` (mode 0600) admits workers, `operator/`
//! holds the credentials of the program that submits runs and watches them. They are made anew at
//! every start, and so are the coordinator's own, which never touch the disk. `log.redb` and
//! `metrics.log` are made here, and read and written elsewhere.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use everstep_transport::identity::{Authority, Credentials, Identity, JoinToken, Role};
use everstep_transport::protocol::NodeName;

use super::CoordinatorError;
use super::journal::Journal;
use crate::log::Log;

const AUTHORITY_DIR: &str = "authority";
const OPERATOR_DIR: &str = "operator";
const TOKEN_FILE: &str = "join.token";
const LOG_FILE: &str = "log.redb";
const JOURNAL_FILE: &str = "metrics.log";

/// The authority's key lies beside the coordinator's and the operator's certificates: a short life
/// of these would protect nothing, and shut the door of a long run.
const KEYHOLDER_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// A cluster's identity, and where it is kept.
pub(super) struct Cluster {
    dir: PathBuf,
    pub(super) authority: Authority,
    pub(super) token: JoinToken,
}

impl Cluster {
    /// Makes a new cluster. Its token comes last: whoever sees it sees a whole directory.
    pub(super) fn create(dir: PathBuf) -> Result<Self, CoordinatorError> {
        let home = dir.join(AUTHORITY_DIR);
        if home.exists() || dir.join(TOKEN_FILE).exists() {
            return Err(CoordinatorError::AlreadyThere(dir));
        }
        create_dir(&home)?;
        let authority = Authority::create()?;
        authority.save(&home)?;
        Log::create(&dir.join(LOG_FILE))?;
        Journal::create(&dir.join(JOURNAL_FILE))?;
        let token = JoinToken::create(&authority);
        write_token(&dir.join(TOKEN_FILE), &token)?;
        let synced = File::open(&dir).and_then(|names| names.sync_all());
        synced.map_err(|source| CoordinatorError::File { path: dir.clone(), source })?;
        Ok(Self { dir, authority, token })
    }

    /// Reads the cluster that is there.
    pub(super) fn load(dir: PathBuf) -> Result<Self, CoordinatorError> {
        let home = dir.join(AUTHORITY_DIR);
        if !home.exists() {
            return Err(CoordinatorError::NothingThere(dir));
        }
        let authority = Authority::load(&home)?;
        let token = read_token(&dir.join(TOKEN_FILE))?;
        Ok(Self { dir, authority, token })
    }

    /// The coordinator's own credentials; writes the operator's.
    pub(super) fn renew_credentials(&self) -> Result<Credentials, CoordinatorError> {
        let home = self.dir.join(OPERATOR_DIR);
        create_dir(&home)?;
        self.issue(Role::Operator, "operator", KEYHOLDER_LIFETIME)?.save(&home)?;
        self.issue(Role::Coordinator, "coordinator-1", KEYHOLDER_LIFETIME)
    }

    /// Where the log is.
    pub(super) fn log(&self) -> PathBuf {
        self.dir.join(LOG_FILE)
    }

    /// Where the metrics lines are.
    pub(super) fn journal(&self) -> PathBuf {
        self.dir.join(JOURNAL_FILE)
    }

    fn issue(
        &self,
        role: Role,
        name: &str,
        lifetime: Duration,
    ) -> Result<Credentials, CoordinatorError> {
        let name = NodeName::parse(name).expect("a valid name");
        Ok(self.authority.issue(&Identity { role, name }, lifetime)?)
    }
}

fn create_dir(path: &Path) -> Result<(), CoordinatorError> {
    fs::create_dir_all(path)
        .map_err(|source| CoordinatorError::File { path: path.to_path_buf(), source })
}

/// Under another name first: whoever waits for the file never reads half a token.
fn write_token(path: &Path, token: &JoinToken) -> Result<(), CoordinatorError> {
    let unfinished = path.with_extension("token.tmp");
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&unfinished)
        .and_then(|mut file| {
            writeln!(file, "{token}")?;
            file.sync_all()?;
            fs::rename(&unfinished, path)
        });
    written.map_err(|source| CoordinatorError::File { path: path.to_path_buf(), source })
}

fn read_token(path: &Path) -> Result<JoinToken, CoordinatorError> {
    let text = fs::read_to_string(path)
        .map_err(|source| CoordinatorError::File { path: path.to_path_buf(), source })?;
    let problem = |problem| CoordinatorError::Token { path: path.to_path_buf(), problem };
    text.parse().map_err(problem)
}
