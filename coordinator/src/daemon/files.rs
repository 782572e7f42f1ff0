//! The files in a coordinator's directory: the cluster's identity, and the place of its history.
//!
//! `authority/` is the certificate authority. `join.token` and `coordinator.token` (mode 0600)
//! admit workers and coordinators. `operator/` holds the credentials of the program that submits
//! runs and watches them. A start renews them if they are due. It always makes the coordinator's
//! own credentials, which never touch the disk. `coordinators` names this coordinator and all
//! others. This module makes `log.redb` and `history.log`, and other modules read and write them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use everstep_transport::identity::{
    AcceptedToken, Authority, Credentials, Identity, JoinToken, NODE_LIFETIME, Role, TokenLimits,
};
use everstep_transport::protocol::{ClusterKeys, CoordinatorId, CoordinatorView, NodeName, Secret};

use super::CoordinatorError;
#[cfg(feature = "failpoints")]
use super::failpoint;
use super::history_file::HistoryFile;
use super::membership_file::{Membership, MembershipFile};
pub(super) use super::operator_folder::OperatorFolder;
use crate::line_file::LineFiles;
use crate::log::Log;
use crate::log::replica::DiskOwner;
use crate::node::NodeError;
use crate::raft::{DurableState, Snapshot};
use crate::state::{CoordinatorInfo, FOUNDER, LOG_FORMATS, State};

const AUTHORITY_DIR: &str = "authority";
const OPERATOR_DIR: &str = "operator";
const WORKER_TOKEN: &str = "join.token";
const COORDINATOR_TOKEN: &str = "coordinator.token";
pub(super) const MEMBERSHIP_FILE: &str = "coordinators";
pub(super) const LOG_FILE: &str = "log.redb";
const HISTORY_FILE: &str = "history.log";
/// The folder with the metrics lines of each run.
const LINES_FOLDER: &str = "metrics";
/// The key with which a coordinator joins. It exists until the coordinator has joined.
pub(super) const JOINING_KEY: &str = "joining.key";
/// A file that [`prepare`] writes once, to test the disk.
const TRIED: &str = "tried";
/// The log as it was before a recovery.
const LOG_BEFORE: &str = "log.redb.before-recovery";
/// A file that exists while the others are being made.
const UNFINISHED: &str = "unfinished";

/// A cluster's identity, a coordinator's place in it, and the directory of both.
pub(super) struct Cluster {
    pub(super) dir: PathBuf,
    pub(super) authority: Arc<Authority>,
    pub(super) membership: MembershipFile,
    workers: JoinToken,
    coordinators: JoinToken,
}

/// The history and the log, as far as this directory has them.
pub(super) struct StoredHistory {
    pub(super) log: Log,
    pub(super) kept: DurableState,
    pub(super) history_file: HistoryFile,
    pub(super) lines: LineFiles,
}

impl Cluster {
    /// Makes a new cluster.
    pub(super) fn create(dir: PathBuf, ephemeral: bool) -> Result<Self, CoordinatorError> {
        refuse_existing(&dir)?;
        let authority = Authority::create()?;
        let [workers, coordinators] = [(); 2].map(|()| JoinToken::create(&authority));
        let membership = Membership {
            name: NodeName::parse("coordinator-1").expect("a valid name"),
            incarnation: draw(&dir)?,
            id: Some(FOUNDER),
            founds: Some(ephemeral),
            seals: seals(&authority, &workers, &coordinators),
            revision: 0,
            members: Vec::new(),
        };
        Self::lay_out(dir, authority, [workers, coordinators], membership)
    }

    /// Makes the directory of a coordinator that has the keys of its cluster, and will join it.
    pub(super) fn adopt(
        dir: PathBuf,
        credentials: &Credentials,
        keys: &ClusterKeys,
    ) -> Result<Self, CoordinatorError> {
        refuse_existing(&dir)?;
        let ClusterKeys { authority: Secret(key), workers, coordinators } = keys;
        let authority = Authority::with_key(credentials.authority().clone(), key)?;
        let (workers, coordinators) =
            (parse_token(&dir, workers)?, parse_token(&dir, coordinators)?);
        let membership = Membership {
            name: credentials.identity().name.clone(),
            incarnation: draw(&dir)?,
            id: None,
            founds: None,
            seals: seals(&authority, &workers, &coordinators),
            revision: 0,
            members: Vec::new(),
        };
        Self::lay_out(dir, authority, [workers, coordinators], membership)
    }

    /// Writes a directory's first files. While `unfinished` exists, they belong to no coordinator:
    /// a process that was killed meanwhile begins anew.
    fn lay_out(
        dir: PathBuf,
        authority: Authority,
        [workers, coordinators]: [JoinToken; 2],
        membership: Membership,
    ) -> Result<Self, CoordinatorError> {
        let (home, unfinished) = (dir.join(AUTHORITY_DIR), dir.join(UNFINISHED));
        create_dir(&dir)?;
        let at = |path: &Path| {
            let path = path.to_path_buf();
            |source| CoordinatorError::File { path, source }
        };
        replace(&unfinished, b"", 0o600).map_err(at(&unfinished))?;
        create_dir(&home)?;
        authority.save(&home)?;
        #[cfg(feature = "failpoints")]
        failpoint::on_stage("laying_out");
        let membership = MembershipFile::create(&dir.join(MEMBERSHIP_FILE), membership)?;
        let cluster =
            Self { authority: Arc::new(authority), dir, membership, workers, coordinators };
        if let Some(id) = cluster.id() {
            cluster.begin(id, &DurableState::founded_by(id.into()))?;
        }
        cluster.save_tokens()?;
        fs::remove_file(&unfinished).map_err(at(&unfinished))?;
        sync_dir(&cluster.dir).map_err(at(&cluster.dir))?;
        #[cfg(feature = "failpoints")]
        failpoint::on_stage("laid_out");
        Ok(cluster)
    }

    /// Reads the cluster in a directory.
    pub(super) fn load(dir: PathBuf) -> Result<Self, CoordinatorError> {
        if refuse_existing(&dir).is_ok() {
            return Err(CoordinatorError::NothingThere(dir));
        }
        let home = dir.join(AUTHORITY_DIR);
        let authority = Authority::load(&home);
        let authority =
            authority.map_err(|source| CoordinatorError::Authority { dir: home, source })?;
        let workers = read_token(&dir.join(WORKER_TOKEN))?;
        let coordinators = read_token(&dir.join(COORDINATOR_TOKEN))?;
        let membership = MembershipFile::load(&dir.join(MEMBERSHIP_FILE))?;
        let found = seals(&authority, &workers, &coordinators);
        let names = [AUTHORITY_DIR, WORKER_TOKEN, COORDINATOR_TOKEN];
        let sealed = found.iter().zip(&membership.membership().seals).zip(names);
        for ((found, sealed), name) in sealed {
            if found != sealed {
                return Err(CoordinatorError::Changed(dir.join(name)));
            }
        }
        Ok(Self { dir, authority: Arc::new(authority), membership, workers, coordinators })
    }

    /// The cluster has admitted the coordinator under this id, so its log can begin.
    pub(super) fn admitted(&mut self, id: CoordinatorId) -> Result<(), CoordinatorError> {
        self.begin(id, &DurableState::default())?;
        Ok(self.membership.admitted(id)?)
    }

    /// The coordinator's id. None while it still has to ask for one.
    pub(super) fn id(&self) -> Option<CoordinatorId> {
        self.membership.membership().id
    }

    /// Opens the log alone. While it is open, no coordinator runs in the directory.
    pub(super) fn log(&self, id: CoordinatorId) -> Result<(Log, DurableState), CoordinatorError> {
        Ok(Log::open(&self.dir.join(LOG_FILE), self.owner(id))?)
    }

    /// Replaces the log by another one, whole or not at all, and keeps the old one beside it.
    /// Returns the path of the old one.
    pub(super) fn replace_log(
        &self,
        id: CoordinatorId,
        kept: &DurableState,
    ) -> Result<PathBuf, CoordinatorError> {
        let (path, before) = (self.dir.join(LOG_FILE), self.dir.join(LOG_BEFORE));
        let at = |path: &Path| {
            let path = path.to_path_buf();
            |source| CoordinatorError::File { path, source }
        };
        fs::copy(&path, &before).map_err(at(&before))?;
        File::open(&before).and_then(|file| file.sync_all()).map_err(at(&before))?;
        sync_dir(&self.dir).map_err(at(&self.dir))?;
        Log::create(&path, self.owner(id), kept)?;
        sync_dir(&self.dir).map_err(at(&self.dir))?;
        Ok(before)
    }

    /// Opens the log, the history file and the metrics lines.
    pub(super) fn stored_history(
        &self,
        id: CoordinatorId,
    ) -> Result<StoredHistory, CoordinatorError> {
        let (log, kept) = self.log(id)?;
        let begins = reach(&kept.snapshot)?;
        let cluster = self.owner(id).cluster;
        let history_file = HistoryFile::open(&self.dir.join(HISTORY_FILE), cluster, begins)?;
        let lines = LineFiles::new(self.dir.join(LINES_FOLDER), cluster);
        Ok(StoredHistory { log, kept, history_file, lines })
    }

    /// Issues the coordinator's own credentials. Writes the operator's credentials if they are due.
    pub(super) fn renew_credentials(&self) -> Result<Credentials, CoordinatorError> {
        self.operator_folder().write_if_due()?;
        self.issue(Role::Coordinator, self.membership.membership().name.clone(), NODE_LIFETIME)
    }

    /// The folder with the operator's credentials.
    pub(super) fn operator_folder(&self) -> OperatorFolder {
        OperatorFolder::find(self.dir.join(OPERATOR_DIR), self.authority.clone())
    }

    /// The tokens in this directory's files. They admit any number of nodes until they are revoked.
    pub(super) fn default_tokens(&self) -> Vec<AcceptedToken> {
        let workers = self.workers.accepted(TokenLimits::unlimited(Role::Worker));
        vec![workers, self.coordinators.accepted(TokenLimits::unlimited(Role::Coordinator))]
    }

    /// Lists the founder of a cluster before its first entry does: an operator may ask at once.
    pub(super) fn list(&mut self, own: &CoordinatorInfo) -> Result<(), CoordinatorError> {
        let Some(id) = self.id().filter(|_| self.membership.membership().revision == 0) else {
            return Ok(());
        };
        let CoordinatorInfo { name, address, api, .. } = own.clone();
        Ok(self.membership.begin(CoordinatorView { id, name, address, api })?)
    }

    /// The keys that make another node a coordinator like this one.
    pub(super) fn keys(&self) -> ClusterKeys {
        let token = |token: &JoinToken| Secret(token.to_string().into_bytes());
        let authority = Secret(self.authority.key().to_vec());
        ClusterKeys {
            authority,
            workers: token(&self.workers),
            coordinators: token(&self.coordinators),
        }
    }

    fn owner(&self, id: CoordinatorId) -> DiskOwner {
        let cluster = *blake3::hash(self.authority.certificate()).as_bytes();
        DiskOwner { cluster, replica: id.into() }
    }

    fn begin(&self, id: CoordinatorId, kept: &DurableState) -> Result<(), CoordinatorError> {
        let owner = self.owner(id);
        Log::create(&self.dir.join(LOG_FILE), owner, kept)?;
        HistoryFile::create(&self.dir.join(HISTORY_FILE), owner.cluster)?;
        for path in [LOG_FILE, HISTORY_FILE].map(|name| self.dir.join(name)) {
            let made = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
            made.map_err(|source| CoordinatorError::File { path, source })?;
        }
        #[cfg(feature = "failpoints")]
        failpoint::on_stage("begun");
        Ok(())
    }

    fn save_tokens(&self) -> Result<(), CoordinatorError> {
        for (name, token) in
            [(COORDINATOR_TOKEN, &self.coordinators), (WORKER_TOKEN, &self.workers)]
        {
            let path = self.dir.join(name);
            let written = replace(&path, format!("{token}\n").as_bytes(), 0o600);
            written.map_err(|source| CoordinatorError::File { path, source })?;
        }
        Ok(())
    }

    fn issue(
        &self,
        role: Role,
        name: NodeName,
        lifetime: Duration,
    ) -> Result<Credentials, CoordinatorError> {
        Ok(self.authority.issue(&Identity { role, name }, lifetime)?)
    }
}

/// Fails if the directory holds such files already: they may be another node's, or worth keeping.
/// Files that another start left unfinished do not count.
pub(super) fn refuse_existing(dir: &Path) -> Result<(), CoordinatorError> {
    if dir.join(UNFINISHED).exists() {
        return Ok(());
    }
    let names =
        [AUTHORITY_DIR, WORKER_TOKEN, COORDINATOR_TOKEN, MEMBERSHIP_FILE, LOG_FILE, HISTORY_FILE];
    match names.iter().any(|name| dir.join(name).exists()) {
        true => Err(CoordinatorError::AlreadyThere(dir.to_path_buf())),
        false => Ok(()),
    }
}

/// The last entry that a snapshot includes, except Raft's own entries, which have no history. A
/// founder's log begins behind an entry that no replica wrote.
pub(super) fn reach(snapshot: &Snapshot) -> Result<u64, CoordinatorError> {
    if snapshot.bytes.is_empty() {
        return Ok(0);
    }
    let state = State::decode(&snapshot.bytes, *LOG_FORMATS.end()).map_err(NodeError::from)?;
    Ok(state.index())
}

/// A random number, different for every directory.
fn draw(dir: &Path) -> Result<u64, CoordinatorError> {
    let mut number = [0; 8];
    let failed = |error: getrandom::Error| CoordinatorError::File {
        path: dir.to_path_buf(),
        source: io::Error::other(error.to_string()),
    };
    getrandom::fill(&mut number).map_err(failed)?;
    Ok(u64::from_le_bytes(number))
}

/// Makes a directory and its parents, unless they exist. Only this user can enter the new ones.
pub(super) fn create_dir(path: &Path) -> Result<(), CoordinatorError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| CoordinatorError::File { path: path.to_path_buf(), source })
}

/// Warns if other users can look into a coordinator's directory, because an operator has made it
/// so. Only this user can read its secrets even then.
pub(super) fn warn_of_onlookers(dir: &Path) {
    if let Some(mode) = onlookers(dir) {
        let (dir, mode) = (dir.display(), format!("{mode:04o}"));
        let next = "chmod 700";
        tracing::warn!(%dir, mode, next, "other users can look into the coordinator's directory");
    }
}

/// The rights of a directory into which users other than its owner can look. None if there are no
/// such users.
fn onlookers(dir: &Path) -> Option<u32> {
    let mode = fs::metadata(dir).ok()?.permissions().mode() & 0o7777;
    (mode & 0o077 != 0).then_some(mode)
}

/// Writes a file durably, under another name first, so that no reader sees half of it.
pub(super) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let unfinished = PathBuf::from(name);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Makes the directory, locks it and tests it, before the process spends anything that it cannot
/// get again. Closing the returned file ends the lock.
pub(super) fn prepare(dir: &Path) -> Result<File, CoordinatorError> {
    create_dir(dir)?;
    let at = |source| CoordinatorError::File { path: dir.to_path_buf(), source };
    let lock = File::open(dir).map_err(at)?;
    // A file system without locks leaves this to the log's own lock.
    if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
        return Err(CoordinatorError::InUse(dir.to_path_buf()));
    }
    let tried = dir.join(TRIED);
    replace(&tried, &[0; 4096], 0o600).and_then(|()| fs::remove_file(&tried)).map_err(at)?;
    Ok(lock)
}

/// Makes the list of a directory's files durable.
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Digests of the files that prove nothing by themselves. The membership file keeps these digests.
fn seals(authority: &Authority, workers: &JoinToken, coordinators: &JoinToken) -> [[u8; 32]; 3] {
    let [workers, coordinators] = [workers, coordinators].map(|token| token.to_string());
    let authority = [authority.certificate().as_ref(), authority.key()].concat();
    let contents = [authority, workers.into_bytes(), coordinators.into_bytes()];
    contents.map(|membership| *blake3::hash(&membership).as_bytes())
}

fn read_token(path: &Path) -> Result<JoinToken, CoordinatorError> {
    let text = fs::read_to_string(path)
        .map_err(|source| CoordinatorError::File { path: path.to_path_buf(), source })?;
    let problem = |problem| CoordinatorError::Token { path: path.to_path_buf(), problem };
    text.parse().map_err(problem)
}

fn parse_token(dir: &Path, Secret(bytes): &Secret) -> Result<JoinToken, CoordinatorError> {
    let problem = |problem| CoordinatorError::Token { path: dir.to_path_buf(), problem };
    String::from_utf8_lossy(bytes).parse().map_err(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_directories_are_this_user_s_alone_and_older_ones_with_wider_rights_are_told_of() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("of/a/coordinator");
        drop(prepare(&dir).expect("made"));
        let cluster = Cluster::create(dir.clone(), false).expect("founded");
        cluster.renew_credentials().expect("the operator's folder");
        for made in ["", AUTHORITY_DIR, OPERATOR_DIR] {
            let mode = dir.join(made).metadata().expect("a folder").permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{made}");
        }
        assert_eq!(onlookers(&dir), None);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("it is ours");
        assert_eq!(onlookers(&dir), Some(0o755));
    }
}
