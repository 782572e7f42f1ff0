//! How a coordinator joins a cluster: once in the life of its directory.
//!
//! With its token the joiner gets a certificate, and then, over a link with that certificate, the
//! cluster's keys. These are its own from then on, and so is its name ([`adopt`]). Then it asks the
//! leader to list it as a coordinator, and gets its id and the list of the others ([`ask`]). If
//! that breaks off, the joiner may repeat it: for the same directory the id is the same.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use everstep_transport::identity::{Credentials, JoinToken, NodeKey, Role};
use everstep_transport::protocol::{ClusterKeys, CoordinatorId, CoordinatorView, Message};
use everstep_transport::quic::{
    ConnectError, Endpoint, Expected, HostPort, Link, Settings, enrol_as,
};
use tokio::time::{Instant, sleep, timeout};

#[cfg(feature = "failpoints")]
use super::failpoint;
use super::files::{Cluster, JOINING_KEY, prepare, refuse_existing};
use super::{AnswerError, BoundAddresses, CoordinatorError, JoinError};
use crate::state;

/// How long the joiner asks before it gives up.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one coordinator may take to answer.
const JOIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between two rounds of all coordinators.
const JOIN_ROUND_BACKOFF: Duration = Duration::from_millis(100);

/// The coordinator of the directory, if it began to join and has no id yet. None in an empty
/// directory.
fn begun(dir: &Path) -> Result<Option<Cluster>, CoordinatorError> {
    let Err(existing) = refuse_existing(dir) else { return Ok(None) };
    match Cluster::load(dir.to_path_buf()) {
        Ok(cluster) if cluster.id().is_none() => Ok(Some(cluster)),
        _ => Err(existing),
    }
}

/// The directory of a coordinator that has the cluster's keys, and its addresses. The directory is
/// the one that is [`begun`], or a new one. It stays locked as long as the returned file is open.
///
/// The joiner makes and tests the directory, takes the addresses and keeps the key before it shows
/// the token to any coordinator. So a second try, by this process or the next in the same
/// directory, spends no other use of the token.
pub(super) async fn adopt(
    dir: PathBuf,
    token: &str,
    coordinators: &[HostPort],
    listen: SocketAddr,
    bind: impl FnOnce() -> Result<BoundAddresses, CoordinatorError>,
) -> Result<(Cluster, BoundAddresses, File), CoordinatorError> {
    let token: JoinToken = token.parse()?;
    let begun = begun(&dir)?;
    if let Some(place) = HostPort::out_of_reach(coordinators, listen).await {
        return Err(CoordinatorError::Loopback { listen, coordinator: place.clone() });
    }
    let (lock, key_file) = (prepare(&dir)?, dir.join(JOINING_KEY));
    let bound = bind()?;
    let cluster = match begun {
        Some(cluster) => cluster,
        None => {
            let key = NodeKey::read_or_make(&key_file)?;
            let asking = enrol_and_fetch_keys(&token, &key, coordinators, listen.ip());
            let told = HostPort::await_answer(coordinators, asking).await;
            // After a refusal the key is of no use.
            if matches!(&told, Err(CoordinatorError::Enrol(error)) if !error.may_pass()) {
                let _ = fs::remove_file(&key_file);
            }
            let (credentials, keys) = told?;
            Cluster::adopt(dir, &credentials, &keys)?
        }
    };
    let _ = fs::remove_file(key_file); // it is of no use any more
    Ok((cluster, bound, lock))
}

/// Enrols, and asks for the cluster's keys. Credentials outlive a question without an answer.
async fn enrol_and_fetch_keys(
    token: &JoinToken,
    key: &NodeKey,
    coordinators: &[HostPort],
    here: IpAddr,
) -> Result<(Credentials, ClusterKeys), CoordinatorError> {
    let (began, mut held) = (Instant::now(), None);
    loop {
        let (addresses, mut last) = resolve(coordinators).await;
        for address in addresses {
            let credentials = match held.take() {
                Some(credentials) => credentials,
                None => match enrol_as(address, token, Role::Coordinator, key).await {
                    Ok(credentials) => {
                        #[cfg(feature = "failpoints")]
                        failpoint::on_stage("enrolled");
                        credentials
                    }
                    Err(error) if error.may_pass() => {
                        last = error.into();
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                },
            };
            let settings = Settings::for_address(here);
            let endpoint = Endpoint::bind((here, 0).into(), &credentials, settings, None)?;
            match fetch_keys(&endpoint, address).await {
                Ok(keys) => {
                    #[cfg(feature = "failpoints")]
                    failpoint::on_stage("keyed");
                    return Ok((credentials, keys));
                }
                Err(error) => last = JoinError::Unheard(error).into(),
            }
            held = Some(credentials);
        }
        if began.elapsed() > JOIN_TIMEOUT {
            return Err(last);
        }
        sleep(JOIN_ROUND_BACKOFF).await;
    }
}

/// The present addresses of the named coordinators, and the error if none of them answers.
async fn resolve(coordinators: &[HostPort]) -> (Vec<SocketAddr>, CoordinatorError) {
    let (mut addresses, mut last) = (Vec::new(), JoinError::NoneNamed);
    for place in coordinators {
        match place.resolve().await {
            Ok(found) => addresses.extend(found),
            Err(error) => last = JoinError::NoAddress { place: place.clone(), error },
        }
    }
    (addresses, last.into())
}

async fn fetch_keys(endpoint: &Endpoint, address: SocketAddr) -> Result<ClusterKeys, AnswerError> {
    let link = connect(endpoint, address).await?;
    link.send(Message::FetchKeys)?;
    let heard = hear(&link, |message| match message {
        Message::Keys(keys) => Some(keys),
        _ => None,
    });
    heard.await
}

/// Asks for a place among the coordinators. Returns the id when the directory is ready for it.
pub(super) async fn ask(
    endpoint: &Endpoint,
    cluster: &mut Cluster,
    own: &state::CoordinatorInfo,
    named: &[HostPort],
) -> Result<CoordinatorId, CoordinatorError> {
    HostPort::await_answer(named, ask_all(endpoint, cluster, own, named)).await
}

async fn ask_all(
    endpoint: &Endpoint,
    cluster: &mut Cluster,
    own: &state::CoordinatorInfo,
    named: &[HostPort],
) -> Result<CoordinatorId, CoordinatorError> {
    let began = Instant::now();
    let mut last = JoinError::NoneNamed;
    loop {
        let known = cluster.membership.membership().members.iter().map(|view| view.address);
        let places: Vec<SocketAddr> = known.chain(resolve(named).await.0).collect();
        for address in places {
            match ask_at(endpoint, address, own).await {
                Ok(JoinAnswer { revision, members, id }) => {
                    cluster.membership.heard(revision, members)?;
                    if let Some(id) = id {
                        #[cfg(feature = "failpoints")]
                        failpoint::on_stage("told");
                        cluster.admitted(id)?;
                        #[cfg(feature = "failpoints")]
                        failpoint::on_stage("admitted");
                        return Ok(id);
                    }
                    last = JoinError::NotLeading(address);
                }
                Err(error) => last = JoinError::Unanswered { address, error },
            }
        }
        if began.elapsed() > JOIN_TIMEOUT {
            return Err(last.into());
        }
        sleep(JOIN_ROUND_BACKOFF).await;
    }
}

struct JoinAnswer {
    revision: u64,
    members: Vec<CoordinatorView>,
    /// None if that coordinator does not lead.
    id: Option<CoordinatorId>,
}

async fn ask_at(
    endpoint: &Endpoint,
    address: SocketAddr,
    own: &state::CoordinatorInfo,
) -> Result<JoinAnswer, AnswerError> {
    let link = connect(endpoint, address).await?;
    let state::CoordinatorInfo { incarnation, address, api, log_format, .. } = *own;
    let join = Message::Join { id: None, incarnation, address, api, log_format };
    link.send(join)?;
    let mut answer = JoinAnswer { revision: 0, members: Vec::new(), id: None };
    // A leader sends the list of coordinators whenever it changes. Any other coordinator sends it
    // once.
    let heard = hear(&link, |message| match message {
        Message::Coordinators { revision, members, leader, .. } => {
            let there = members.iter().find(|view| view.address == link.remote_address());
            let leads = there.is_some_and(|view| leader == Some(view.id));
            (answer.revision, answer.members) = (revision, members);
            (!leads).then_some(())
        }
        Message::Joined { id } => {
            answer.id = Some(id);
            Some(())
        }
        _ => None,
    });
    heard.await?;
    Ok(answer)
}

async fn connect(endpoint: &Endpoint, address: SocketAddr) -> Result<Link, ConnectError> {
    let expected = Expected::Role(Role::Coordinator);
    endpoint.connect_within(address, &expected, JOIN_ANSWER_TIMEOUT).await
}

/// Waits for an answer among all messages of the link.
async fn hear<T>(
    link: &Link,
    mut wanted: impl FnMut(Message) -> Option<T>,
) -> Result<T, AnswerError> {
    let heard = async {
        loop {
            let message = link.receive().await?;
            if let Some(answer) = wanted(message) {
                return Ok(answer);
            }
        }
    };
    timeout(JOIN_ANSWER_TIMEOUT, heard).await.unwrap_or(Err(AnswerError::Silent))
}
