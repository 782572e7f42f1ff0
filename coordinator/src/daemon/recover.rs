//! `recover`: a cluster goes on from one coordinator's directory when most disks are lost.
//!
//! In: the directory of a coordinator that does not run. Out: the same directory, with a log that
//! has this coordinator as its only member (see [`crate::recovery`]). The coordinator then starts
//! in it as ever. Nothing changes while another coordinator answers, because two clusters would
//! lead the same workers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use everstep_transport::identity::{Credentials, Role};
use everstep_transport::protocol::{CoordinatorId, CoordinatorView};
use everstep_transport::quic::{Endpoint, Expected, Settings};
use tokio::task::JoinSet;

use super::CoordinatorError;
use super::files::Cluster;
use crate::recovery::{self, RecoveryError, RecoveryPlan};

/// The lifetime of the credentials for calling the other coordinators.
const RECOVERY_CREDENTIALS_LIFETIME: Duration = Duration::from_secs(600);

/// The result of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The content of the old log.
    pub plan: RecoveryPlan,
    /// The path of the old log.
    pub before: PathBuf,
}

/// Why a cluster does not go on from a directory.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The directory is unusable.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// The cluster cannot go on from its log.
    #[error(transparent)]
    Log(#[from] RecoveryError),
    /// Another coordinator of the cluster lives, and may be a part of a majority.
    #[error("coordinator {id} answers at {address}: it is not lost")]
    Answers {
        /// The id of that coordinator.
        id: CoordinatorId,
        /// The address at which it answered.
        address: SocketAddr,
    },
    /// The caller has not accepted that entries are lost.
    #[error("entries may be lost, and that was not accepted")]
    NotAccepted(RecoveryPlan),
}

/// Goes on from a directory, if `accepts` says that the caller accepts lost entries. Blocks for
/// some seconds while it calls the other coordinators.
///
/// # Errors
/// [`RecoverError`]. Nothing has changed then, unless writing the log has failed.
pub fn recover(dir: PathBuf, accepts: bool) -> Result<Recovered, RecoverError> {
    let cluster = Cluster::load(dir)?;
    let Some(id) = cluster.id() else { return Err(RecoveryError::Empty.into()) };
    // Held open to the end, so that no coordinator starts in the directory meanwhile.
    let (_lock, kept) = cluster.log(id)?;
    let plan = recovery::plan(&kept, id)?;
    let credentials = cluster.operator_folder().issue(RECOVERY_CREDENTIALS_LIFETIME)?;
    // The list of the log may be older than that of the file beside it.
    let mut others = plan.lost.clone();
    others.extend(
        cluster.membership.membership().members.iter().filter(|view| view.id != id).cloned(),
    );
    actix::System::new().block_on(nobody_answers(&credentials, others))?;
    if !accepts {
        return Err(RecoverError::NotAccepted(plan));
    }
    // The clock stamps one event only. A clock before 1970 is wrong anyway.
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let kept = recovery::recovered(kept, id, unix.as_millis() as u64);
    let before = cluster.replace_log(id, &kept)?;
    Ok(Recovered { plan, before })
}

/// Calls all of them at once, as an operator does.
async fn nobody_answers(
    credentials: &Credentials,
    others: Vec<CoordinatorView>,
) -> Result<(), RecoverError> {
    let mut calls = JoinSet::new();
    for CoordinatorView { id, address, .. } in others {
        let here: IpAddr = match address {
            SocketAddr::V4(there) if there.ip().is_loopback() => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(there) if there.ip().is_loopback() => Ipv6Addr::LOCALHOST.into(),
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let settings = Settings::for_address(here);
        let endpoint = Endpoint::bind((here, 0).into(), credentials, settings, None)
            .map_err(CoordinatorError::from)?;
        calls.spawn(async move {
            let expected = Expected::Role(Role::Coordinator);
            let answers = endpoint.connect(address, &expected).await.is_ok();
            endpoint.close("it is not lost").await;
            answers.then_some((id, address))
        });
    }
    while let Some(called) = calls.join_next().await {
        if let Some((id, address)) = called.ok().flatten() {
            return Err(RecoverError::Answers { id, address });
        }
    }
    Ok(())
}
