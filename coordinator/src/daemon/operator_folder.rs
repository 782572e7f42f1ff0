//! The credentials with which an operator asks: `operator/` in a coordinator's directory.
//!
//! A start writes them if there are none, or if less than a third of their life is left. Then they
//! get a new key and keep their name. Any other start writes nothing, so it needs no room on the
//! disk. Copies of the folder on other machines have the same name, and one revocation ends them
//! all. When that name is revoked, the folder gets credentials of another name at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use everstep_transport::identity::{Authority, Credentials, Identity, Role, UnixTime};
use everstep_transport::protocol::NodeName;

use super::CoordinatorError;
use super::files::create_dir;

/// The operator's certificate lies beside the authority's key, so a short life would protect
/// nothing. And a copy of it on another machine has to be good tomorrow as well.
const OPERATOR_CREDENTIALS_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// The folder, its authority and the operator's name.
pub(super) struct OperatorFolder {
    folder: PathBuf,
    authority: Arc<Authority>,
    operator: Identity,
}

impl OperatorFolder {
    /// The folder, which may not exist yet.
    pub(super) fn find(folder: PathBuf, authority: Arc<Authority>) -> Self {
        let operator = named(&folder, &authority).unwrap_or_else(draw);
        Self { folder, authority, operator }
    }

    /// Writes credentials, unless the folder has some that are good for long.
    pub(super) fn write_if_due(&self) -> Result<(), CoordinatorError> {
        let held = held(&self.folder, &self.authority);
        match held.is_some_and(|held| !held.are_due(UnixTime::now())) {
            true => Ok(()),
            false => self.write(),
        }
    }

    /// Writes credentials with a new key.
    pub(super) fn write(&self) -> Result<(), CoordinatorError> {
        create_dir(&self.folder)?;
        Ok(self.issue(OPERATOR_CREDENTIALS_LIFETIME)?.save(&self.folder)?)
    }

    /// Issues credentials with a new key, and does not write them.
    pub(super) fn issue(&self, lifetime: Duration) -> Result<Credentials, CoordinatorError> {
        Ok(self.authority.issue(&self.operator, lifetime)?)
    }

    /// Takes another name if the present one is revoked. If writing fails now, the next start
    /// writes.
    pub(super) fn replace_if(&mut self, is_revoked: impl Fn(&Identity) -> bool) {
        if !is_revoked(&self.operator) {
            return;
        }
        let before = std::mem::replace(&mut self.operator, draw());
        match self.write() {
            Ok(()) => {
                let (name, before) = (&self.operator.name, &before.name);
                tracing::info!(%name, %before, "the operator was revoked: its folder has another");
            }
            Err(error) => tracing::error!(%error, "the operator's folder cannot be written"),
        }
    }
}

/// The operator's credentials in the folder, if they are of this authority.
fn held(folder: &Path, authority: &Authority) -> Option<Credentials> {
    let held = Credentials::load(folder).ok()?;
    let is_ours = held.authority() == authority.certificate();
    Some(held).filter(|held| is_ours && held.identity().role == Role::Operator)
}

fn named(folder: &Path, authority: &Authority) -> Option<Identity> {
    Some(held(folder, authority)?.identity().clone())
}

/// A random name, different for every operator.
fn draw() -> Identity {
    let number = getrandom::u64().expect("the system has random numbers");
    let name = NodeName::parse(&format!("operator-{number:016x}"));
    Identity { role: Role::Operator, name: name.expect("letters, a dash and hex are a name") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_keeps_its_name_until_that_is_revoked() {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Arc::new(Authority::create().expect("an authority"));
        let find = |authority: &Arc<Authority>| {
            OperatorFolder::find(dir.path().join("operator"), authority.clone())
        };
        let load = || Credentials::load(&dir.path().join("operator")).expect("credentials");
        find(&authority).write().expect("written");
        let first = load();
        find(&authority).write().expect("written");
        let mut folder = find(&authority);
        assert_eq!(load().identity(), first.identity());
        assert_ne!(load().chain(), first.chain(), "its key is new when it is written");
        let chain = load().chain();
        find(&authority).write_if_due().expect("nothing to do");
        assert_eq!(load().chain(), chain, "they were written a moment ago");
        let short = find(&authority).issue(Duration::ZERO).expect("credentials");
        short.save(&dir.path().join("operator")).expect("saved");
        find(&authority).write_if_due().expect("written");
        assert_ne!(load().chain(), short.chain(), "they had expired");
        let first = load();
        folder.replace_if(|_| false);
        assert_eq!(load().identity(), first.identity());
        folder.replace_if(|node| node == first.identity());
        assert_ne!(load().identity(), first.identity());
        let stranger = Arc::new(Authority::create().expect("an authority"));
        assert_ne!(find(&stranger).operator, *load().identity(), "another cluster's");
    }
}
